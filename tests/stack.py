"""What tests of whole turns stand on: a real Temporal, a real ledger, a worker, and vendors."""

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from activities.settings import VendorSettings
from turnsaga.client import TurnClient
from turnsaga.models import EffectView, Principal, TurnEvent, TurnView
from turnsaga.store import SqlStore, Started
from turnsaga.testing import Truth, differences, disorder
from turnsaga.tools import EffectTool, Tools
from workers.build import build_worker
from workers.settings import WorkerSettings

REPOSITORY = Path(__file__).parent.parent
TEMPORAL = Path(sys.executable).parent / "temporal"
SEARCH_ATTRIBUTES = ("TurnStatus=Keyword", "ConversationId=Keyword", "NeedsAttention=Bool")
WHO = Principal(tenant="acme", user="ada")
_names = itertools.count(1)
# Below the range from which outgoing connections get theirs: one of those could have it before it is used.
_ports = itertools.cycle(10_000 + (os.getpid() * 10 + number) % 10_000 for number in range(10_000))


def free_port() -> int:
    """Return a port of loopback that nobody listens on, and that no other call has returned lately."""
    return next(port for port in _ports if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


async def eventually(condition: Any, *, within: float = 15.0, what: str = "the condition") -> Any:
    """Return the condition's first true value, or fail once the time is over."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + within
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if loop.time() > give_up:
            raise AssertionError(f"{what} didn't come true within {within} s")
        await asyncio.sleep(0.02)


@dataclass
class SandboxProcess:
    """A running ``python -m sandbox``."""

    http: httpx.AsyncClient
    vendor: VendorSettings

    async def knobs(self, system: str, **knobs: Any) -> None:
        """Replace a system's knobs."""
        answer = await self.http.put(f"/_control/{system}", json=knobs)
        assert answer.is_success, answer.text

    async def clear(self) -> None:
        """Clear all knobs."""
        (await self.http.delete("/_control")).raise_for_status()

    async def truth(self) -> dict[str, Any]:
        """Return what really happened."""
        found: dict[str, Any] = (await self.http.get("/_truth")).json()
        return found


@asynccontextmanager
async def sandbox_process(folder: Path) -> AsyncIterator[SandboxProcess]:
    """Run the sandbox as a process of its own, on free ports."""
    port, smtp = free_port(), free_port()
    env = {
        **os.environ,
        "SANDBOX_PORT": str(port),
        "SANDBOX_SMTP_PORT": str(smtp),
        "SANDBOX_DATABASE": str(folder / "sandbox.db"),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandbox", cwd=REPOSITORY, env=env, stdout=asyncio.subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        await eventually(lambda: _answers(http, process), what="the sandbox")
        vendor = VendorSettings(
            pay_url=f"{url}/pay", crm_url=f"{url}/crm", smtp_port=smtp, hook_url=f"{url}/hook"
        )
        try:
            yield SandboxProcess(http, vendor)
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def _answers(http: httpx.AsyncClient, process: asyncio.subprocess.Process) -> bool:
    assert process.returncode is None, "the sandbox ended at its start"
    try:
        return (await http.get("/healthz")).is_success
    except httpx.TransportError:
        return False


@dataclass
class Turns:
    """Turns on a worker of their own queue, over given tools."""

    client: Client
    store: SqlStore
    tools: Tools
    turns: TurnClient
    task_queue: str
    who: Principal = WHO
    started: list[Started] = field(default_factory=list[Started])

    async def start(
        self,
        *replies: Mapping[str, Any],
        policies: Mapping[str, str] | None = None,
        conversation: str | None = None,
        **options: Any,
    ) -> Started:
        """Start a turn of a new conversation with a script of these replies.

        What can be undone commits at once, where ``policies`` doesn't say otherwise.
        """
        at_once = {
            tool.name: "immediate" for tool in self.tools if isinstance(tool, EffectTool) and tool.reversible
        }
        name = conversation or f"conversation-{next(_names)}"
        started = await self.turns.start(
            self.who,
            name,
            message=json.dumps({"script": list(replies)}),
            start_key=f"start-{next(_names)}",
            model="script",
            policies={**at_once, **(policies or {})},
            **options,
        )
        self.started.append(started)
        return started

    def handle(self, started: Started) -> WorkflowHandle[Any, Any]:
        """Return the turn's workflow."""
        return self.client.get_workflow_handle(started.ref.turn)

    async def settled(self, started: Started, *, within: float = 30) -> TurnView:
        """Return the turn once it has ended and its run has too."""
        view = await self.turns.settled(self.who, started.ref.turn, timeout_s=within)
        assert view.settlement is not None, f"turn rests {view.state} after {within} s: {view.effects}"
        return view

    async def view(self, started: Started) -> TurnView:
        """Return the turn as it is now."""
        return await self.turns.view(self.who, started.ref.turn)

    async def effects(self, started: Started) -> dict[str, EffectView]:
        """Return the turn's effects by tool and identity: "tool identity"."""
        view = await self.view(started)
        return {f"{effect.tool} {effect.identity}": effect for effect in view.effects}

    async def states(self, started: Started) -> dict[str, str]:
        """Return the states of the turn's effects, by "tool identity"."""
        return {name: effect.state.value for name, effect in (await self.effects(started)).items()}

    async def events(self, started: Started) -> list[TurnEvent]:
        """Return the events of an ended turn."""
        return [event async for event in self.turns.follow(self.who, started.ref.turn) if event]

    async def reaches(self, started: Started, state: str, tool: str, *, within: float = 15) -> EffectView:
        """Wait until an effect of that tool is in that state."""

        async def there() -> EffectView | None:
            view = await self.view(started)
            return next(
                (effect for effect in view.effects if (effect.state.value, effect.tool) == (state, tool)),
                None,
            )

        found: EffectView = await eventually(there, within=within, what=f"{tool} {state}")
        return found

    async def must_agree(self, truth: Truth, *turns: Started) -> None:
        """Fail unless these turns' effects are what the systems say stands, and their events are in order."""
        views = [await self.view(started) for started in turns]
        effects = [effect for view in views for effect in view.effects]
        places = {(self._system(effect.tool), effect.identity) for effect in effects}
        own = Truth(effects=tuple(true for true in truth.effects if (true.system, true.identity) in places))
        assert differences(effects, own, self.systems()) == ()
        for started in turns:
            assert disorder(await self.events(started)) == ()

    def systems(self) -> dict[str, str]:
        """Return each tool's system."""
        return {card.name: card.system for card in self.tools.cards().values() if card.system is not None}

    def _system(self, tool: str) -> str:
        return self.systems()[tool]


@asynccontextmanager
async def turns_over(
    client: Client,
    folder: Path,
    tools: Tools | Sequence[Any],
    *,
    max_cached_workflows: int = 1000,
    database: str | None = None,
) -> AsyncIterator[Turns]:
    """Run a worker over these tools and a new ledger."""
    registry = tools if isinstance(tools, Tools) else Tools(tools)
    queue = f"queue-{next(_names)}"
    store = SqlStore(database or f"sqlite:///{folder / f'{queue}.db'}")
    await store.open()
    await store.write_tool_cards(registry.cards())
    settings = WorkerSettings(task_queue=queue, drain_s=5, max_cached_workflows=max_cached_workflows)
    worker: Worker = build_worker(client, store, settings, tools=registry)
    turns = Turns(client, store, registry, TurnClient(client, store, task_queue=queue), queue)
    async with worker:
        yield turns
    await store.close()


def say(*chunks: str, **more: Any) -> dict[str, Any]:
    """Return a scripted reply of text."""
    return {"text": list(chunks), **more}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """Return one scripted call."""
    return {"tool": tool, "args": arguments}


def reply(*calls: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a scripted reply that asks for these calls."""
    return {"calls": list(calls), **more}
