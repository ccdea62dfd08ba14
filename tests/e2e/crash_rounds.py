"""Kills of a worker, each with many turns that stand at chosen points, and what became of each turn."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client

from tests.e2e.crash_cells import CELLS, UNDOING, Cell, Place, Point
from tests.e2e.crash_judging import Judged, UnderWay, judge, write_report
from tests.e2e.crashing_worker import MARKERS, crash_tools
from tests.e2e.worker_process import WorkerProcess, worker_env
from tests.stack import SandboxProcess, Turns, call, eventually, reply, sandbox_process, say
from turnsaga.client import TurnClient
from turnsaga.ledger import State
from turnsaga.models import EffectView, Principal, TurnView
from turnsaga.recovery import sweeper_schedule
from turnsaga.store import SqlStore

__all__ = ["ROUNDS", "Round", "run_round"]

_ON_THE_WIRE: Final = frozenset({Point.REQUEST_LEFT, Point.APPLIED, Point.UNDO_LEFT, Point.UNDO_APPLIED})
_LANDS_S: Final = 12
_ENDS_S: Final = 120


@dataclass(frozen=True)
class Round:
    """Points that share a kill, how the vendors behave until then, and what the worker is told."""

    name: str
    points: frozenset[Point]
    knobs: Mapping[str, int] = field(default_factory=dict[str, int])
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def cells(self) -> Sequence[Cell]:
        return [cell for cell in CELLS if cell.point in self.points]


ROUNDS: Final = (
    Round("commits", frozenset(set(Point) - UNDOING - _ON_THE_WIRE)),
    Round("undos", UNDOING - _ON_THE_WIRE),
    # A request that has left lands after it has been asked about, and after another one may have been sent.
    # Runs that no worker has in memory go on at once: Temporal waits ten seconds for one that had.
    Round(
        "left",
        frozenset({Point.REQUEST_LEFT, Point.UNDO_LEFT}),
        {"apply_after_ms": _LANDS_S * 1000},
        {"TURNSAGA_MAX_CACHED_WORKFLOWS": "0"},
    ),
    Round("applied", frozenset({Point.APPLIED, Point.UNDO_APPLIED}), {"latency_ms": 12_000}),
)


@dataclass
class _Scene:
    """A ledger, vendors and a worker of one round alone."""

    turns: Turns
    worker: WorkerProcess
    sandbox: SandboxProcess
    markers: Path

    async def begin(self, cells: Iterable[Cell]) -> list[UnderWay]:
        return list(await asyncio.gather(*(self._begin(cell) for cell in cells)))

    async def _begin(self, cell: Cell) -> UnderWay:
        # An account of its own, so that what its user is told is of this turn alone.
        turns = replace(self.turns, who=Principal(tenant="acme", user=cell.name))
        names = [name for name in (cell.earlier, cell.name) if name is not None]
        if cell.point is Point.BETWEEN_UNDOS:
            names.reverse()
        last = say("thinking", delay_ms=300_000) if cell.point in UNDOING else say("Done.")
        steps = [reply(call(cell.kind.tool, **cell.kind.arguments(name))) for name in names]
        held = {cell.kind.tool: "turn_end"} if cell.point is Point.AFTER_PREPARE else {}
        started = await turns.start(
            *steps, last, policies={"post_message": "immediate!", **held}, conversation=cell.name
        )
        return UnderWay(cell, turns, started)

    async def misplaced(self, turns: Sequence[UnderWay]) -> list[str]:
        """Return the cells whose effect isn't where it is to be at the kill."""
        calls = (await self.sandbox.truth())["calls"]
        found: list[str] = []
        for turn in turns:
            cell = turn.cell
            at = _place(cell, await turn.effect(), calls)
            frozen = cell.point in _ON_THE_WIRE or (self.markers / cell.name).exists()
            if at != cell.place or not frozen:
                found.append(f"{cell.name}: {at}")
        return found


async def run_round(client: Client, folder: Path, what: Round) -> list[Judged]:
    """Bring a round's turns to their points, kill their worker, and judge what another one makes of them."""
    async with _scene(client, folder, what.name) as scene:
        await scene.worker.start(**what.env, **{MARKERS: str(scene.markers)})
        undone = await scene.begin(cell for cell in what.cells if cell.point in UNDOING)
        await asyncio.gather(*(_both_committed(turn) for turn in undone))
        for system in ("pay", "crm", "hook") if what.knobs else ():
            await scene.sandbox.knobs(system, **what.knobs)
        committing = await scene.begin(cell for cell in what.cells if cell.point not in UNDOING)
        await asyncio.gather(*(turn.stop() for turn in undone))
        everything = committing + undone
        await _placed(scene, everything)
        await asyncio.gather(*(turn.stop() for turn in committing if turn.cell.stopped))
        await scene.worker.end(signal.SIGKILL)
        killed = time.monotonic()
        late = [turn for turn in everything if turn.cell.point in {Point.REQUEST_LEFT, Point.UNDO_LEFT}]
        assert await scene.misplaced(late) == [], "it landed before the kill"
        await scene.sandbox.clear()
        await scene.worker.start()
        ends = await asyncio.gather(*(_settled(turn, killed) for turn in everything))
        if late:
            # Of a request that is refused in the end nothing tells when that was.
            await asyncio.sleep(max(0.0, killed + _LANDS_S + 1 - time.monotonic()))
        truth = await scene.sandbox.truth()
        judged = [
            await judge(turn, view, seconds, truth)
            for turn, (view, seconds) in zip(everything, ends, strict=True)
        ]
    write_report(judged)
    return judged


@asynccontextmanager
async def _scene(client: Client, folder: Path, name: str) -> AsyncIterator[_Scene]:
    markers = folder / "markers"
    markers.mkdir(parents=True)
    queue = f"crash-{folder.parent.name}-{name}"
    database = f"sqlite:///{folder / 'ledger.db'}"
    store = SqlStore(database)
    await store.open()
    async with sandbox_process(folder) as sandbox, crash_tools(sandbox.vendor) as tools:
        await store.write_tool_cards(tools.cards())
        worker = WorkerProcess(
            worker_env(client, sandbox.vendor, database=database, task_queue=queue),
            folder,
            argv=("-m", "tests.e2e.crashing_worker"),
        )
        turns = Turns(client, store, tools, TurnClient(client, store, task_queue=queue), queue)
        try:
            yield _Scene(turns, worker, sandbox, markers)
        finally:
            if worker.process is not None and worker.process.returncode is None:
                await worker.end(signal.SIGKILL)
            await client.get_schedule_handle(sweeper_schedule(queue)).delete()
    await store.close()


async def _both_committed(turn: UnderWay) -> None:
    async def there() -> bool:
        return [effect.state for effect in (await turn.view()).effects] == [State.COMMITTED] * 2

    await eventually(there, within=60, what=f"the commits of {turn.cell.name}")


async def _placed(scene: _Scene, turns: Sequence[UnderWay]) -> None:
    give_up = time.monotonic() + 60
    while misplaced := await scene.misplaced(turns):
        assert time.monotonic() < give_up, misplaced
        await asyncio.sleep(0.1)


def _place(cell: Cell, effect: EffectView | None, calls: Sequence[Mapping[str, Any]]) -> Place:
    op = "undo" if cell.point in UNDOING else "apply"
    mine = [each for each in calls if (each["op"], each["identity"]) == (op, cell.identity)]
    state = None if effect is None else effect.state.value
    if not mine:
        return Place(state)
    last = mine[-1]
    return Place(state, sent=True, landed=last["applied_at"] is not None, answered=last["answered"])


async def _settled(turn: UnderWay, killed: float) -> tuple[TurnView, float]:
    view = await turn.turns.settled(turn.started, within=_ENDS_S)
    return view, time.monotonic() - killed
