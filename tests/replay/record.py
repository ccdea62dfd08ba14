"""Record the histories that the replay tests replay: ``python -m tests.replay.record [story …]``.

Run it on purpose only: a history stands for runs of an older version that are still open somewhere. A
change that alters a workflow's commands goes behind ``workflow.patched`` and adds a history.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, Union

from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from activities.deployment import deployment_tools
from tests.stack import (
    SEARCH_ATTRIBUTES,
    TEMPORAL,
    WHO,
    SandboxProcess,
    Turns,
    call,
    eventually,
    reply,
    sandbox_process,
    say,
    turns_over,
)
from turnsaga.models import EffectView
from turnsaga.store import Started

HISTORIES = Path(__file__).parent / "histories"
MONEY = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
THINKING = say(*["thinking "] * 400, delay_ms=50)

Json: TypeAlias = Union[dict[str, "Json"], list["Json"], str, int, float, bool, None]  # noqa: UP007  # recursive
Story = Callable[[Turns, SandboxProcess, str], Awaitable[Started]]


async def completed(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """Two steps of parallel calls, one of them a read and one unknown to the registry."""
    del sandbox
    started = await turns.start(
        reply(
            call("find_customer", query="ada"),
            call("charge_card", invoice=f"{name}-1", **MONEY),
            call("nonsense"),
        ),
        reply(
            call("create_record", kind="ticket", id=f"{name}-2"),
            call("charge_card", invoice=f"{name}-3", **MONEY),
        ),
        say("Done."),
    )
    await turns.settled(started)
    return started


async def aborted(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """Stopped with a charge in flight, after a record, with a mail that stands."""
    await sandbox.knobs("pay", latency_ms=500)
    started = await turns.start(
        reply(call("create_record", kind="ticket", id=f"{name}-1")),
        reply(call("send_invoice_email", to="ada@example.com", invoice=f"{name}-2", amount="10.00")),
        reply(call("charge_card", invoice=f"{name}-3", **MONEY)),
        policies={"send_invoice_email": "immediate!"},
    )
    await turns.reaches(started, "committing", "charge_card")
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    return started


async def aborted_in_doubt(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """Stopped with a charge in flight whose answer is lost: looked up, then undone."""
    await sandbox.knobs("pay", latency_ms=500, drop_response=1, only={"op": "apply"})
    started = await turns.start(reply(call("charge_card", invoice=name, **MONEY)))
    await turns.reaches(started, "committing", "charge_card")
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    return started


async def stopped(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """Stopped while the model speaks, with two charges done: the abort says what is undone first."""
    del sandbox
    started = await turns.start(
        reply(
            call("charge_card", invoice=f"{name}-1", **MONEY),
            call("charge_card", invoice=f"{name}-2", **MONEY),
        ),
        THINKING,
    )

    async def both() -> bool:
        return list((await turns.states(started)).values()) == ["committed"] * 2

    await eventually(both)
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    return started


async def cancelled(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """Cancelled natively, twice, with two commits done."""
    await sandbox.knobs("pay", latency_ms=300, only={"op": "undo"})
    started = await turns.start(
        reply(call("charge_card", invoice=f"{name}-1", **MONEY)),
        reply(call("charge_card", invoice=f"{name}-2", **MONEY)),
        THINKING,
    )

    async def both() -> bool:
        return list((await turns.states(started)).values()) == ["committed"] * 2

    await eventually(both)
    await turns.handle(started).cancel()
    await turns.reaches(started, "compensating", "charge_card")
    await turns.handle(started).cancel()
    await turns.settled(started)
    return started


async def failed(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """The model is down after a charge."""
    del sandbox
    started = await turns.start(
        reply(call("charge_card", invoice=name, **MONEY)), {"error": {"status": 400, "times": 9}}
    )
    await turns.settled(started)
    return started


async def lost_and_resent(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """A charge whose answer is lost while the turn lives: sent again under its key."""
    await sandbox.knobs("pay", drop_response=1)
    started = await turns.start(reply(call("charge_card", invoice=name, **MONEY)), say("Done."))
    await turns.settled(started)
    return started


async def confirmed(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """Two mails held for answers, one confirmed with a delay and one rejected; then one at the turn's end."""
    del sandbox
    started = await turns.start(
        reply(_mail(f"{name}-1"), _mail(f"{name}-2")),
        reply(call("charge_card", invoice=f"{name}-3", **MONEY)),
        say("Done."),
        policies={"send_invoice_email": "confirmed+200ms", "charge_card": "turn_end"},
    )

    async def both() -> list[EffectView] | None:
        asked = [one for one in (await turns.view(started)).effects if one.held_for == "confirmation"]
        return asked if len(asked) == 2 else None

    asked: list[EffectView] = await eventually(both)
    for one, decide in zip(asked, (turns.turns.confirm, turns.turns.reject), strict=True):
        await decide(WHO, one.effect, version=one.version, digest=one.digest)
    await turns.settled(started)
    return started


async def withdrawn(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """Stopped with a mail held for an answer and a charge held for the turn's end."""
    del sandbox
    started = await turns.start(
        reply(_mail(f"{name}-1"), call("charge_card", invoice=f"{name}-2", **MONEY)),
        policies={"charge_card": "turn_end"},
    )

    async def both() -> bool:
        reasons = {one.held_for for one in (await turns.view(started)).effects}
        return reasons == {"confirmation", "turn_end"}

    await eventually(both)
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    return started


async def answered_directly(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """A mail that is confirmed by an update of the workflow, after one that is wrong."""
    del sandbox
    started = await turns.start(reply(_mail(name)), say("Done."))

    async def held() -> EffectView | None:
        effects = (await turns.view(started)).effects
        return next((one for one in effects if one.held_for == "confirmation"), None)

    one: EffectView = await eventually(held)
    right = {"effect": one.effect, "version": one.version, "digest": one.digest, "by": "console"}
    with contextlib.suppress(WorkflowUpdateFailedError):
        await turns.handle(started).execute_update("confirm", {**right, "digest": "other"})
    await turns.handle(started).execute_update("confirm", right)
    await turns.settled(started)
    return started


async def queued(turns: Turns, sandbox: SandboxProcess, name: str) -> Started:
    """Queued behind a turn that is stopped a little later."""
    del sandbox
    first = await turns.start(THINKING, conversation=name)
    started = await turns.start(say("Done."), conversation=name, on_busy="queue")
    await asyncio.sleep(1.5)
    await turns.turns.abort(WHO, first.ref.turn)
    await turns.settled(started)
    return started


def _mail(invoice: str) -> dict[str, Any]:
    return call("send_invoice_email", to="ada@example.com", invoice=invoice, amount="10.00")


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        completed,
        aborted,
        aborted_in_doubt,
        stopped,
        cancelled,
        failed,
        lost_and_resent,
        confirmed,
        withdrawn,
        answered_directly,
        queued,
    )
}


async def record(client: Client, folder: Path, names: Sequence[str]) -> None:
    """Write one history a story, and one more from a worker without a cache."""
    async with sandbox_process(folder) as sandbox, deployment_tools(sandbox.vendor) as tools:
        for suffix, cached in (("", 1000), ("-uncached", 0)):
            async with turns_over(client, folder, tools, max_cached_workflows=cached) as turns:
                for name in names:
                    await sandbox.clear()
                    started = await STORIES[name](turns, sandbox, f"INV-{name}{suffix}")
                    await _closed(turns, started)
                    history = await turns.handle(started).fetch_history()
                    text = json.dumps(_of_no_machine(_parsed(history.to_json())), indent=1)
                    (HISTORIES / f"{name}{suffix}.json").write_text(f"{text}\n", encoding="utf-8")


def _parsed(text: str) -> Json:
    value: Json = json.loads(text)
    return value


def _of_no_machine(value: Json) -> Json:
    """Return a history without what names the machine that recorded it: processes, paths, stack traces."""
    if isinstance(value, dict):
        return {
            key: "recorded" if key in {"identity", "stackTrace"} else _of_no_machine(item)
            for key, item in value.items()
        }
    return [_of_no_machine(item) for item in value] if isinstance(value, list) else value


async def _closed(turns: Turns, started: Started) -> None:
    async def closed() -> bool:
        return (await turns.handle(started).describe()).close_time is not None

    await eventually(closed)


async def main(names: Sequence[str]) -> None:
    """Record the stories of these names."""
    HISTORIES.mkdir(exist_ok=True)
    extra = [word for attribute in SEARCH_ATTRIBUTES for word in ("--search-attribute", attribute)]
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(TEMPORAL),
        dev_server_extra_args=extra,
        data_converter=pydantic_data_converter,
    ) as environment:
        with tempfile.TemporaryDirectory() as folder:
            await record(environment.client, Path(folder), names)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(STORIES)))
