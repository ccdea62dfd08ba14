"""One run on each side: started, stopped, and what the side itself says became of it."""

import asyncio
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final, Protocol

from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from benchmarks.crashes.cells import Order, Stop
from benchmarks.crashes.naive import NaiveOrder
from benchmarks.crashes.on_dbos import QUEUE, STOP, WAITING, WORKFLOW, dbos_package, dbos_version
from benchmarks.crashes.rig import Bench, CrashRig
from tests.stack import call, eventually, reply, say
from turnsaga._version import __version__
from turnsaga.ledger import State
from turnsaga.store import Started

__all__ = ["Said", "Side", "side_of"]

_COMMITS_S: Final = 60
_STANDS: Final = frozenset({State.COMMITTED, State.STANDING, State.COMPENSATION_FAILED})


@dataclass(frozen=True)
class Said:
    """What a side says at the end: a word, and how many of the effects stand by it.

    ``standing`` is None while it says nothing, since it is still running.
    """

    word: str
    standing: int | None


class Side(Protocol):
    """One run."""

    version: str

    async def start(self) -> None:
        """Start it."""
        ...

    async def committed(self) -> None:
        """Return once it has committed everything and knows it."""
        ...

    async def stop(self, how: Stop | None) -> None:
        """Stop it: so, or as it is stopped when its undos are to run."""
        ...

    async def says(self) -> Said:
        """Return what it says of itself now."""
        ...


@dataclass
class _OurTurn:
    rig: CrashRig
    order: Order
    version: str = f"turnsaga {__version__}"
    _started: Started | None = field(default=None, init=False)

    async def start(self) -> None:
        charges = [
            reply(call("charge_card", customer="cus_1", amount="10.00", currency="EUR", invoice=invoice))
            for invoice in self.order.invoices
        ]
        last = say("thinking", delay_ms=300_000) if self.order.waits else say("Done.")
        record = reply(call("create_record", kind="ticket", id=self.order.record))
        self._started = await self.rig.turns.start(record, *charges, last)

    async def committed(self) -> None:
        async def there() -> bool:
            view = await self.rig.turns.view(self._turn)
            return [effect.state for effect in view.effects] == [State.COMMITTED] * 3

        await eventually(there, within=_COMMITS_S, what="all commits")

    async def stop(self, how: Stop | None) -> None:
        del how  # there is one way
        await self.rig.turns.turns.abort(self.rig.turns.who, self._turn.ref.turn)

    async def says(self) -> Said:
        view = await self.rig.turns.view(self._turn)
        if view.settlement is None:
            return Said("running", None)
        return Said(view.state.value, sum(effect.state in _STANDS for effect in view.effects))

    @property
    def _turn(self) -> Started:
        if self._started is None:
            raise RuntimeError("the turn hasn't begun")
        return self._started


@dataclass
class _NaiveRun:
    rig: CrashRig
    bench: Bench
    order: Order
    keyed: bool
    version: str = f"temporalio {version('temporalio')}"
    _handle: WorkflowHandle[Any, Any] | None = field(default=None, init=False)

    async def start(self) -> None:
        self._handle = await self.rig.client.start_workflow(
            "NaiveSaga",
            NaiveOrder(self.order, self.keyed),
            id=f"naive-{self.order.name}",
            task_queue=self.bench.queue,
        )

    async def committed(self) -> None:
        async def there() -> bool:
            return bool(await self._run.query("waiting"))

        await eventually(there, within=_COMMITS_S, what="all commits")

    async def stop(self, how: Stop | None) -> None:
        if how == "message":
            await self._run.signal("stop")
        else:
            await self._run.cancel()

    async def says(self) -> Said:
        match (await self._run.describe()).status:
            case WorkflowExecutionStatus.COMPLETED:
                return Said("completed", len(self.order.identities))
            case WorkflowExecutionStatus.RUNNING | None:
                return Said("running", None)
            case WorkflowExecutionStatus.CANCELED:
                return Said("cancelled", 0)
            case other:
                return Said(other.name.lower(), 0)

    @property
    def _run(self) -> WorkflowHandle[Any, Any]:
        if self._handle is None:
            raise RuntimeError("the run hasn't begun")
        return self._handle


@dataclass
class _DbosRun:
    bench: Bench
    order: Order
    keyed: bool
    version: str = f"dbos {dbos_version()}"
    _client: Any = field(default=None, init=False)

    async def start(self) -> None:
        self._client = await asyncio.to_thread(
            dbos_package().DBOSClient, system_database_url=self.bench.database
        )
        options = {"workflow_name": WORKFLOW, "queue_name": QUEUE, "workflow_id": self.order.name}
        await self._client.enqueue_async(options, self.order.name, self.order.waits, self.keyed)

    async def committed(self) -> None:
        if not await self._client.get_event_async(self.order.name, WAITING, _COMMITS_S):
            raise RuntimeError("not all is committed")

    async def stop(self, how: Stop | None) -> None:
        # Its documentation promises no compensation after a cancel: an undo has to be asked for.
        if how == "cancel":
            await self._client.cancel_workflow_async(self.order.name)
        else:
            await self._client.send_async(self.order.name, "stop", STOP)

    async def says(self) -> Said:
        handle = await self._client.retrieve_workflow_async(self.order.name)
        match (await handle.get_status()).status:
            case "SUCCESS":
                return Said("completed", len(self.order.identities))
            case "ERROR":
                return Said("failed", 0)
            case "CANCELLED":
                return Said("cancelled", 0)
            case _:
                return Said("running", None)


def side_of(rig: CrashRig, bench: Bench, order: Order) -> Side:
    """Return a run of this order on that side."""
    name, _, keyed = bench.side.partition(", ")
    match name:
        case "turnsaga":
            return _OurTurn(rig, order)
        case "naive":
            return _NaiveRun(rig, bench, order, bool(keyed))
        case "dbos":
            return _DbosRun(bench, order, bool(keyed))
        case _:
            raise ValueError(f"there is no side {name!r}")
