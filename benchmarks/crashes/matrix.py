"""Every cell on every side, and what the vendors then say happened.

What is counted comes from the sandbox's log alone; what a side says of itself is held against it.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.crashes.cells import CELLS, LANDS_AFTER_S, Cell, Order
from benchmarks.crashes.rig import Bench, CrashRig
from benchmarks.crashes.sides import Said, Side, side_of
from benchmarks.crashes.wire import Aim
from benchmarks.machine import load
from tests.stack import eventually

__all__ = ["crash_matrix"]

_ENDS_S: Final = 60
"""How long a run has to end in, once its new worker polls."""
_QUIET_S: Final = 4
"""For so long nothing may come to the vendors any more: longer than a side waits before it tries again."""


async def crash_matrix(
    rig: CrashRig, *, repeat: int, cells: Sequence[Cell] = CELLS
) -> AsyncIterator[list[dict[str, Any]]]:
    """Run each cell so many times, on all sides at once; give a line a side after each."""
    for cell in cells:
        for number in range(1, repeat + 1):
            yield await asyncio.gather(*(_run(rig, bench, cell, number) for bench in rig.benches.values()))


async def _run(rig: CrashRig, bench: Bench, cell: Cell, number: int) -> dict[str, Any]:
    order = Order(f"{rig.run}-{bench.worker.folder.name}-{cell.name}-{number}", waits=cell.stopped)
    side = side_of(rig, bench, order)
    aim = bench.wire.aim = _aim(cell, order, bench)
    await side.start()
    if cell.undo is not None:
        await side.committed()
        await side.stop(None)
    async with asyncio.timeout(_ENDS_S):
        await aim.reached.wait()
    since = time.monotonic()
    await asyncio.gather(_happens(bench, side, cell), _let_go(aim))
    said = await _ended(side)
    seconds = time.monotonic() - since
    await _quiet(rig, order)
    line: dict[str, Any] = {
        "bench": "crashes",
        "side": bench.side,
        "version": side.version,
        "cell": cell.name,
        "words": cell.words,
        "repeat": number,
        **_counted(await rig.sandbox.truth(), order, said),
        "seconds": round(seconds, 1),
        "load": load(),
    }
    return line


def _aim(cell: Cell, order: Order, bench: Bench) -> Aim:
    if cell.undo is not None:
        return Aim("/pay/v1/refunds", cell.holds, number=cell.undo)
    # A worker that has just got its answer hasn't recorded it yet; a moment later it may have.
    kill = bench.worker.process.kill if cell.holds == "answered" and bench.worker.process else None
    return Aim("/pay/v1/charges", cell.holds, needle=order.invoices[1].encode(), then=kill)


async def _happens(bench: Bench, side: Side, cell: Cell) -> None:
    if cell.killed:
        with contextlib.suppress(ProcessLookupError):  # its aim may have killed it already
            await bench.worker.end(signal.SIGKILL)
        await bench.worker.start()
    else:
        await side.stop(cell.stop)


async def _let_go(aim: Aim) -> None:
    await asyncio.sleep(LANDS_AFTER_S)
    aim.let_go.set()


async def _ended(side: Side) -> Said:
    give_up = time.monotonic() + _ENDS_S
    while True:
        said = await side.says()
        if said.standing is not None or time.monotonic() > give_up:
            return said
        await asyncio.sleep(0.1)


async def _quiet(rig: CrashRig, order: Order) -> None:
    """Return once no call about the order has come for a while, however long the side goes on."""
    seen: list[Any] = []
    since = time.monotonic()

    async def nothing_new() -> bool:
        nonlocal seen, since
        calls = _about(order, (await rig.sandbox.truth())["calls"])
        if calls != seen:
            seen, since = calls, time.monotonic()
        return time.monotonic() - since > _QUIET_S

    await eventually(nothing_new, within=_ENDS_S, what="quiet at the vendors")


def _about(order: Order, listed: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each for each in listed if each["identity"] in order.identities]


def _counted(truth: Mapping[str, Any], order: Order, said: Said) -> dict[str, Any]:
    effects = _about(order, truth["effects"])
    calls = [each for each in _about(order, truth["calls"]) if each["op"] != "lookup"]
    undone = [each["identity"] for each in calls if each["op"] == "undo" and each["applied_at"] is not None]
    standing = sum(each["standing"] for each in effects)
    twice = [each["identity"] for each in effects if each["applied"] > 1]
    undone_twice = sorted({identity for identity in undone if undone.count(identity) > 1})
    return {
        "applied": sum(each["applied"] for each in effects),
        "undone": sum(each["undone"] for each in effects),
        "standing": standing,
        "applied_twice": twice,
        "undone_twice": undone_twice,
        "sent": len(calls),
        "says": said.word,
        "agrees": standing == said.standing,
        "leak": said.word not in {"completed", "running"} and standing > (said.standing or 0),
        "double": bool(twice or undone_twice),
        "stuck": said.standing is None,
    }
