"""Kills of a worker, each with many turns that stand at chosen points, and what became of each turn."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client

from tests.e2e.crash_cells import CELLS, UNDOING, Cell, Place, Point
from tests.e2e.crash_judging import Judged, UnderWay, judge, write_report
from tests.e2e.crashing_worker import LANDS_WITHIN_S, MARKERS, crash_tools
from tests.e2e.held_wire import HeldWire, Holds, held_wire
from tests.e2e.worker_process import WorkerProcess, worker_env
from tests.stack import SandboxProcess, Turns, call, eventually, reply, sandbox_process, say
from turnsaga.client import TurnClient
from turnsaga.ledger import State
from turnsaga.models import EffectView, Principal, TurnView
from turnsaga.recovery import sweeper_schedule
from turnsaga.store import SqlStore

__all__ = ["ROUNDS", "Round", "run_round"]

_LEFT: Final = frozenset({Point.REQUEST_LEFT, Point.UNDO_LEFT})
_APPLIED: Final = frozenset({Point.APPLIED, Point.UNDO_APPLIED})
_PLACED_S: Final = 30
_ENDS_S: Final = 120
_TRIES: Final = 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Round:
    """Points that share a kill, what is kept back on the wire, and what the workers are told."""

    name: str
    points: frozenset[Point]
    holds: Holds = "nothing"
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def cells(self) -> Sequence[Cell]:
        return [cell for cell in CELLS if cell.point in self.points]


ROUNDS: Final = (
    Round("commits", frozenset(set(Point) - UNDOING - _LEFT - _APPLIED)),
    Round("undos", UNDOING - _LEFT - _APPLIED),
    # What has left lands once it has been asked about, however slow this machine is.
    Round("left", _LEFT, "requests", {LANDS_WITHIN_S: "100"}),
    Round("applied", _APPLIED, "answers"),
)


@dataclass
class _Scene:
    """A ledger, vendors and a worker of one round alone."""

    turns: Turns
    worker: WorkerProcess
    sandbox: SandboxProcess
    wire: HeldWire
    doomed: Mapping[str, str]
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
        on_the_wire = 0
        for turn in turns:
            cell = turn.cell
            at = _place(cell, await turn.effect(), calls)
            on_the_wire += cell.point in _LEFT | _APPLIED
            frozen = cell.point in _LEFT | _APPLIED or (self.markers / cell.name).exists()
            if at != cell.place or not frozen:
                found.append(f"{cell.name}: {at}")
        if self.wire.held != on_the_wire:
            found.append(f"{self.wire.held} of {on_the_wire} on the wire")
        return found

    async def asked_about(self, turns: Sequence[UnderWay]) -> bool:
        """Tell whether what is on the wire was asked about or sent again, wherever that is possible."""
        calls = (await self.sandbox.truth())["calls"]
        seen = {(each["op"], each["identity"]) for each in calls}
        return all((op, turn.cell.identity) in seen for turn in turns for op in _next_calls(turn.cell))


class Misplaced(AssertionError):
    """Turns that didn't come to their points, or went past them: nothing was killed."""


async def run_round(client: Client, folder: Path, what: Round, *, alone: asyncio.Lock) -> list[Judged]:
    """Bring a round's turns to their points, kill their worker, and judge what another one makes of them.

    Rounds come to their kills ``alone``, one after the other; what follows is mostly waiting. On a
    machine so busy that a frozen attempt misses its heartbeats Temporal tries it again; such a round is begun
    anew.
    """
    for number in range(_TRIES - 1):
        try:
            return await _run(client, folder / str(number), what, alone)
        except Misplaced as error:
            _log.warning("round %r is begun anew: %s", what.name, error)
    return await _run(client, folder / "last", what, alone)


async def _run(client: Client, folder: Path, what: Round, alone: asyncio.Lock) -> list[Judged]:
    async with _scene(client, folder, what) as scene:
        async with alone:
            killed = await _killed(scene, what)
        settling = asyncio.create_task(_settled(killed))
        await scene.worker.start()
        if what.holds == "requests":
            await eventually(lambda: scene.asked_about(killed), within=60, what="questions")
            scene.wire.let_go()
        ends = await settling
        if what.holds == "requests":
            await eventually(lambda: scene.wire.answered >= scene.wire.held, what="the end of each request")
        truth = await scene.sandbox.truth()
        judged = await asyncio.gather(*(judge(each, *ends[each.cell.name], truth) for each in killed))
    write_report(asdict(each) for each in judged)
    return list(judged)


async def _killed(scene: _Scene, what: Round) -> Sequence[UnderWay]:
    """Bring a round's turns to their points, and kill their worker there."""
    await scene.worker.start(**scene.doomed)
    undone = await scene.begin(cell for cell in what.cells if cell.point in UNDOING)
    await asyncio.gather(*(_both_committed(each) for each in undone))
    scene.wire.holds = what.holds
    committing = await scene.begin(cell for cell in what.cells if cell.point not in UNDOING)
    await asyncio.gather(*(each.stop() for each in undone))
    await _placed(scene, committing + undone)
    await asyncio.gather(*(each.stop() for each in committing if each.cell.stopped))
    await scene.worker.end(signal.SIGKILL)
    return committing + undone


@asynccontextmanager
async def _scene(client: Client, folder: Path, what: Round) -> AsyncIterator[_Scene]:
    markers = folder / "markers"
    markers.mkdir(parents=True)
    queue = f"crash-{folder.parent.parent.name}-{what.name}-{folder.name}"
    database = f"sqlite:///{folder / 'ledger.db'}"
    store = SqlStore(database)
    await store.open()
    async with (
        sandbox_process(folder) as sandbox,
        held_wire(str(sandbox.http.base_url)) as (wire, by_wire),
        crash_tools(sandbox.vendor) as tools,
    ):
        await store.write_tool_cards(tools.cards())
        worker = WorkerProcess(
            {**worker_env(client, sandbox.vendor, database=database, task_queue=queue), **what.env},
            folder,
            argv=("-m", "tests.e2e.crashing_worker"),
        )
        doomed = {
            MARKERS: str(markers),
            **{f"TURNSAGA_{name.upper()}_URL": f"{by_wire}/{name}" for name in ("pay", "crm", "hook")},
        }
        turns = Turns(client, store, tools, TurnClient(client, store, task_queue=queue), queue)
        try:
            yield _Scene(turns, worker, sandbox, wire, doomed, markers)
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
    give_up = time.monotonic() + _PLACED_S
    while misplaced := await scene.misplaced(turns):
        if time.monotonic() > give_up:
            raise Misplaced(misplaced)
        await asyncio.sleep(0.3)


def _place(cell: Cell, effect: EffectView | None, calls: Sequence[Mapping[str, Any]]) -> Place:
    op = "undo" if cell.point in UNDOING else "apply"
    mine = [each for each in calls if (each["op"], each["identity"]) == (op, cell.identity)]
    state = None if effect is None else effect.state.value
    return Place(state, landed=bool(mine) and mine[-1]["applied_at"] is not None)


def _next_calls(cell: Cell) -> Iterable[str]:
    """Name what the vendor gets next of a cell whose request is on the wire, where that is for certain."""
    if cell.point is Point.UNDO_LEFT:
        if cell.kind.undo_keyed:
            yield "undo"
    elif cell.kind.keyed and not cell.stopped:
        yield "apply"
    elif cell.kind.asked and not cell.kind.keyed:
        yield "lookup"


async def _settled(turns: Sequence[UnderWay]) -> dict[str, tuple[TurnView, float]]:
    """Return each turn once it has settled, and how long that took, by the cell's name.

    They are looked at three times a second: so many that look as often as a client does are a load by
    themselves, under which everything else stands still.
    """
    began = time.monotonic()
    found: dict[str, tuple[TurnView, float]] = {}
    while left := [turn for turn in turns if turn.cell.name not in found]:
        took = time.monotonic() - began
        views = {turn.cell.name: await turn.view() for turn in left}
        found |= {name: (view, took) for name, view in views.items() if view.settlement is not None}
        assert took < _ENDS_S, [view for name, view in views.items() if name not in found]
        await asyncio.sleep(0.3)
    return found
