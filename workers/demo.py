"""``make demo``: the main job as a story, on a stack of its own, judged by what the vendors say happened."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from turnsaga.models import EffectView
from turnsaga.testing import Truth, differences

__all__ = ["demo"]

_ROOT: Final = Path(__file__).resolve().parents[1]
_SYSTEMS: Final = {
    "charge_card": "pay",
    "create_record": "crm",
    "update_record": "crm",
    "send_invoice_email": "mail",
}
# The story names when each tool commits, so that it doesn't depend on this deployment's settings.
_AT_ONCE: Final = {"charge_card": "immediate", "create_record": "immediate", "update_record": "immediate"}
_ASKED: Final = {**_AT_ONCE, "send_invoice_email": "confirmed"}
_USER: Final = {"X-Turnsaga-User": "demo/ada"}
_PATIENCE_S: Final = 60.0


class _StoryFailed(Exception):  # ends the story; printed as one line
    """Something in the story didn't go as it must; says what."""


@dataclass
class _Story:
    """The running stack and what has been told so far."""

    web: httpx.AsyncClient
    sandbox: httpx.AsyncClient
    stack: "_Stack"
    drop_response: bool
    console: Console
    turns: list[str] = field(default_factory=list[str])

    async def start(self, conversation: str, *replies: Mapping[str, Any], **body: Any) -> str:  # noqa: ANN401  # JSON
        """Start a turn with a script, and return its id."""
        message = json.dumps({"script": list(replies)})
        answer = await self.web.post(
            f"/v1/conversations/{conversation}/turns",
            json={"message": message, **body},
            headers={"Idempotency-Key": f"{conversation}-{len(self.turns)}"},
        )
        _must(answer.status_code == 201, f"a turn was refused: {answer.text}")
        turn = str(answer.json()["turn"])
        self.turns.append(turn)
        return turn

    async def view(self, turn: str) -> dict[str, Any]:
        """Return the turn as the API shows it."""
        found: dict[str, Any] = (await self.web.get(f"/v1/turns/{turn}")).raise_for_status().json()
        return found

    async def until(self, turn: str, tool: str, **shown: str) -> dict[str, Any]:
        """Wait until an effect of that tool shows these fields, and return it."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _PATIENCE_S
        while loop.time() < give_up:
            for effect in (await self.view(turn))["effects"]:
                if effect["tool"] == tool and shown.items() <= effect.items():
                    return dict(effect)
            await asyncio.sleep(0.02)
        raise _StoryFailed(f"{tool} of {turn} didn't come to {shown} within {_PATIENCE_S:.0f} s")

    async def confirm(self, held: Mapping[str, Any]) -> None:
        """Press Confirm on what is held, as it was shown."""
        body = {"version": held["version"], "digest": held["digest"]}
        answer = await self.web.post(f"/v1/effects/{held['effect']}/confirm", json=body)
        _must(answer.status_code == 202, f"the confirmation was answered {answer.status_code}: {answer.text}")

    async def abort(self, turn: str, reason: str) -> None:
        """Press Stop."""
        answer = await self.web.post(f"/v1/turns/{turn}/abort", json={"reason": reason})
        _must(
            answer.status_code == 202, f"the abort of {turn} was answered {answer.status_code}: {answer.text}"
        )

    async def settled(self, turn: str, state: str) -> dict[str, Any]:
        """Wait for the turn's end, and fail unless it is that one."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + 2 * _PATIENCE_S
        while loop.time() < give_up:
            answer = await self.web.get(f"/v1/turns/{turn}", params={"wait": "settled", "timeout": 20})
            found: dict[str, Any] = answer.raise_for_status().json()
            if found["settlement"] is not None:
                _must(found["state"] == state, f"{turn} ended {found['state']}, and must end {state}")
                return found
        raise _StoryFailed(f"{turn} didn't end within {2 * _PATIENCE_S:.0f} s")

    async def text(self, turn: str) -> str:
        """Return what the model said, as the event stream has it."""
        said: list[str] = []
        async with self.web.stream("GET", f"/v1/turns/{turn}/events") as stream:
            kind = ""
            async for line in stream.aiter_lines():
                if line.startswith("event:"):
                    kind = line.removeprefix("event:").strip()
                elif line.startswith("data:") and kind == "text_delta":
                    said.append(str(json.loads(line.removeprefix("data:"))["text"]))
        return "".join(said)

    async def pay(self, **knobs: Any) -> None:  # noqa: ANN401  # JSON
        """Set PAY's knobs; with ``drop_response`` it also loses the answer of the next charge."""
        if self.drop_response:
            knobs = {"drop_response": 1, "only": {"op": "apply"}} | knobs
        (await self.sandbox.put("/_control/pay", json=knobs)).raise_for_status()

    def tell(self, what: str) -> None:
        """Say what happens next."""
        self.console.print(f"[bold]·[/bold] {what}")


@dataclass
class _Stack:
    """``python -m workers dev`` as a child, and the lines that it prints."""

    process: asyncio.subprocess.Process
    ready: dict[str, Any]
    workers: list[int]

    async def kill_worker(self) -> None:
        """SIGKILL the worker, and wait until the supervisor has started another."""
        os.kill(self.workers[0], signal.SIGKILL)
        line = await self._line()
        _must(line.get("restarted") == "worker", f"the worker wasn't started again: {line}")
        self.workers = [int(line["pid"])]

    async def _line(self) -> dict[str, Any]:
        if self.process.stdout is None:
            raise RuntimeError("the stack has no output")
        raw = await asyncio.wait_for(self.process.stdout.readline(), _PATIENCE_S)
        _must(bool(raw), "the stack ended")
        found: dict[str, Any] = json.loads(raw)
        return found


async def demo(*, drop_response: bool = False) -> int:
    """Run the story and print it as a table. Returns 0 only if ledger and truth agree."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    with tempfile.TemporaryDirectory(prefix="turnsaga-demo-") as folder:
        try:
            async with _stack(Path(folder), console) as stack:
                return await _tell(stack, console, drop_response=drop_response)
        except _StoryFailed as error:
            console.print(f"[red]The story failed:[/red] {error}")
            return 1


@asynccontextmanager
async def _stack(folder: Path, console: Console) -> AsyncIterator[_Stack]:
    console.print("[bold]·[/bold] starting Temporal, the sandbox, a worker and the web tier")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "workers", "dev", "--port-base", str(_free_ports(5)), "--data", str(folder)),
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    stack = _Stack(process, {}, [])
    try:
        stack.ready = await stack._line()  # noqa: SLF001  # the same module
        stack.workers = [int(pid) for pid in stack.ready["pids"]["worker"]]
        yield stack
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def _tell(stack: _Stack, console: Console, *, drop_response: bool) -> int:
    async with (
        httpx.AsyncClient(base_url=stack.ready["web"], headers=_USER, timeout=70) as web,
        httpx.AsyncClient(base_url=stack.ready["sandbox"], timeout=10) as sandbox,
    ):
        story = _Story(web, sandbox, stack, drop_response, console)
        if drop_response:
            story.tell("PAY applies every charge and loses the first answer to it")
        await _completes(story)
        await _is_aborted(story)
        await _stands(story)
        await _loses_its_worker(story)
        await _says_what_stands(story)
        return await _judged(story)


async def _completes(story: _Story) -> None:
    story.tell("a turn that completes: it finds a customer, notes it in the CRM, and charges at its end")
    await story.pay()
    turn = await story.start(
        "completes",
        {"text": ["Looking ", "her up. "], "delay_ms": 20, "calls": [_call("find_customer", query="ada")]},
        {
            "calls": [
                _charge("INV-1"),
                _call("create_record", kind="note", id="N-1", fields={"text": "INV-1"}),
            ]
        },
        {"text": ["Charged: {{results}}"]},
        policies={**_AT_ONCE, "charge_card": "turn_end"},
    )
    await story.settled(turn, "completed")
    said = await story.text(turn)
    _must("takes effect when this turn ends" in said, f"the model wasn't told that it is held: {said!r}")


async def _is_aborted(story: _Story) -> None:
    story.tell(
        "a turn that is stopped while a charge is in flight, after a record was created and changed, "
        "with a mail held for confirmation"
    )
    await story.pay(latency_ms=1200)
    turn = await story.start(
        "aborted",
        {"calls": [_call("create_record", kind="order", id="O-2", fields={"state": "open"})]},
        {"calls": [_call("update_record", kind="order", id="O-2", fields={"state": "paid"})]},
        {
            "text": ["Charging."],
            "calls": [
                _call("send_invoice_email", to="ada@example.com", invoice="INV-2", amount="120.00"),
                _charge("INV-2"),
            ],
        },
        {"calls": [_charge("INV-2b")]},
        policies=_ASKED,
    )
    held = await story.until(turn, "send_invoice_email", held_for="confirmation")
    await story.until(turn, "charge_card", state="committing")
    await story.abort(turn, "the customer changed their mind")
    view = await story.settled(turn, "aborted")
    states = {f"{effect['tool']} {effect['identity']}": effect["state"] for effect in view["effects"]}
    mail = states.pop(f"send_invoice_email {held['identity']}")
    _must(mail == "released", f"the held mail is {mail}, and must be released")
    _must(set(states.values()) == {"compensated"}, f"not all of it was undone: {states}")
    _must(len(states) == 3, f"something ran after the abort: {states}")


async def _stands(story: _Story) -> None:
    story.tell("a turn whose mail was confirmed, and can't be called back when the turn is stopped")
    turn = await story.start(
        "stands",
        {"calls": [_call("send_invoice_email", to="ada@example.com", invoice="INV-3", amount="12.00")]},
        {"text": ["Anything else? "] * 200, "delay_ms": 50},
        policies=_ASKED,
    )
    await story.confirm(await story.until(turn, "send_invoice_email", held_for="confirmation"))
    await story.until(turn, "send_invoice_email", state="committed")
    await story.abort(turn, "too late")
    view = await story.settled(turn, "aborted")
    _must(view["effects"][0]["state"] == "standing", "a mail that went out must be shown as standing")


async def _loses_its_worker(story: _Story) -> None:
    story.tell("a turn whose worker is killed (SIGKILL) in the middle of a charge")
    await story.pay(latency_ms=1500)
    turn = await story.start(
        "killed", {"calls": [_charge("INV-4")]}, {"text": ["Charged once."]}, policies=_AT_ONCE
    )
    await story.until(turn, "charge_card", state="committing")
    await asyncio.sleep(0.3)
    await story.stack.kill_worker()
    await story.settled(turn, "completed")


async def _says_what_stands(story: _Story) -> None:
    story.tell("the next turn, in another conversation, is told what stands")
    turn = await story.start("next", {"text": ["Before we go on:\n{{context}}"]})
    await story.settled(turn, "completed")
    said = await story.text(turn)
    _must("INV-3" in said, f"the next turn wasn't told of the mail that stands: {said!r}")
    for line in said.splitlines():
        story.console.print(f"    [dim]{line}[/dim]")


async def _judged(story: _Story) -> int:
    views = [await story.view(turn) for turn in story.turns]
    effects = [EffectView.model_validate(effect) for view in views for effect in view["effects"]]
    truth = Truth.model_validate((await story.sandbox.get("/_truth")).raise_for_status().json())
    standing = {(true.system, true.identity): true for true in truth.effects}
    table = Table(title="The ledger beside what the vendors say")
    for column in ("turn", "effect", "#", "ledger", "vendor", "applied", "undone", "stands"):
        table.add_column(column, no_wrap=column != "effect")
    for view in views:
        for effect in view["effects"]:
            system = _SYSTEMS[effect["tool"]]
            true = standing.get((system, effect["identity"]))
            counts = (
                ("0", "0", "0") if true is None else (str(true.applied), str(true.undone), str(true.standing))
            )
            order = "" if effect["order"] is None else str(effect["order"])
            table.add_row(view["state"], effect["title"], order, effect["state"], system, *counts)
    story.console.print(table)
    wrong = differences(effects, truth, _SYSTEMS)
    for difference in wrong:
        story.console.print(f"[red]{difference}[/red]")
    if wrong:
        return 1
    story.console.print(
        f"[green]Ledger and truth agree[/green] on {len(effects)} effects of {len(views)} turns."
    )
    return 0


def _charge(invoice: str) -> dict[str, Any]:
    return _call("charge_card", customer="cus_1", amount="120.00", currency="EUR", invoice=invoice)


def _call(tool: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    return {"tool": tool, "args": arguments}


def _must(holds: bool, otherwise: str) -> None:  # noqa: FBT001  # reads as an assertion
    if not holds:
        raise _StoryFailed(otherwise)


def _free_ports(count: int) -> int:
    """Return the first of so many neighbouring ports that are free now."""
    for base in range(20000, 32000, count):
        probes: list[socket.socket] = []
        try:
            for port in range(base, base + count):
                probe = socket.socket()
                probes.append(probe)
                probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        else:
            return base
        finally:
            for probe in probes:
                probe.close()
    raise _StoryFailed(f"there are no {count} neighbouring free ports")
