"""How a turn is started and stopped on each side, and what is measured of it."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from temporalio.client import WorkflowFailureError, WorkflowHandle

from benchmarks.bare_models import BareTurn
from benchmarks.rig import Rig
from benchmarks.shop import model_name
from turnsaga.client import TurnClient
from turnsaga.models import FenceAnswer, FenceRequest, Principal
from turnsaga.store import SqlStore

__all__ = ["Ran", "Side", "TurnFigures", "figures", "run_turn", "side_of"]

_WHO = Principal(tenant="bench", user="ada")


class Side(Protocol):
    """One side of the comparison."""

    async def start(self, effects: int) -> str:
        """Start a turn of so many effects; return its workflow's id."""
        ...

    async def abort(self, turn: str) -> None: ...

    def fenced_at(self, turn: str) -> float | None:
        """Return when no further commit could start, or None if nobody wrote that down."""
        ...


@dataclass(frozen=True)
class TurnFigures:
    """One turn, in ms from its abort; ``history_*`` are of its whole run."""

    ack_ms: float
    fence_ms: float | None
    undone_ms: float
    closed_ms: float
    history_events: int
    history_bytes: int


class _Bare:
    def __init__(self, rig: Rig) -> None:
        self._client = rig.client

    async def start(self, effects: int) -> str:
        turn = f"bare-{secrets.token_hex(8)}"
        await self._client.start_workflow(
            "BareSaga", BareTurn("Book it all.", effects), id=turn, task_queue="bench-bare"
        )
        return turn

    async def abort(self, turn: str) -> None:
        await self._client.get_workflow_handle(turn).cancel()

    def fenced_at(self, turn: str) -> float | None:
        del turn
        return None


class _TurnSaga:
    def __init__(self, rig: Rig, side: str, store: SqlStore) -> None:
        self._fenced: dict[str, float] = {}
        self._write_fence = store.fence
        store.fence = self._fence  # type: ignore[method-assign]  # to know when its transaction has ended
        self._turns = TurnClient(rig.client, store, task_queue=f"bench-{side}")

    async def start(self, effects: int) -> str:
        name = secrets.token_hex(8)
        started = await self._turns.start(
            _WHO, f"c-{name}", message="Book it all.", start_key=name, model=model_name(effects)
        )
        return started.ref.turn

    async def abort(self, turn: str) -> None:
        await self._turns.abort(_WHO, turn)

    def fenced_at(self, turn: str) -> float | None:
        return self._fenced.get(turn)

    async def _fence(self, request: FenceRequest, *, owner: Principal | None = None) -> FenceAnswer:
        answer = await self._write_fence(request, owner=owner)
        self._fenced[request.turn] = time.time()
        return answer


@asynccontextmanager
async def side_of(rig: Rig, name: str) -> AsyncIterator[Side]:
    """Give a side by its name."""
    if name == "bare":
        yield _Bare(rig)
        return
    store = SqlStore(rig.databases[name])
    await store.open()
    try:
        yield _TurnSaga(rig, name, store)
    finally:
        await store.close()


@dataclass(frozen=True)
class Ran:
    """A turn that has ended, and the instants that only the driver knows; the rest is asked afterwards."""

    turn: str
    aborted: float
    acknowledged: float
    closed: float


async def run_turn(rig: Rig, side: Side, effects: int) -> Ran:
    """Run one turn to its second model request, stop it there, and wait until it has closed.

    Raises:
        RuntimeError: it didn't undo what it did.
    """
    turn = await side.start(effects)
    await rig.marks.wait(turn, "streaming")
    aborted = time.time()
    await side.abort(turn)
    acknowledged = time.time()
    await _end(rig.client.get_workflow_handle(turn))
    closed = time.time()
    for what in ("committed", "undone"):
        # A mark can be on its way still when Temporal's answer is there.
        for _ in range(50):
            if rig.marks.count(turn, what) >= effects:
                break
            await asyncio.sleep(0.01)
        if (found := rig.marks.count(turn, what)) != effects:
            raise RuntimeError(f"{turn}: {found} of {effects} {what}")
    return Ran(turn, aborted, acknowledged, closed)


async def figures(rig: Rig, side: Side, ran: Ran) -> TurnFigures:
    """Ask what is to be known of a turn, once nothing is being measured any more."""
    described = await rig.client.get_workflow_handle(ran.turn).describe()
    info = described.raw_description.workflow_execution_info
    fenced = side.fenced_at(ran.turn)
    return TurnFigures(
        ack_ms=(ran.acknowledged - ran.aborted) * 1000,
        fence_ms=None if fenced is None else (fenced - ran.aborted) * 1000,
        undone_ms=(rig.marks.last(ran.turn, "undone") - ran.aborted) * 1000,
        closed_ms=(ran.closed - ran.aborted) * 1000,
        history_events=info.history_length,
        history_bytes=info.history_size_bytes,
    )


async def _end(handle: WorkflowHandle[Any, Any]) -> None:
    try:
        await handle.result()
    except WorkflowFailureError:
        return
