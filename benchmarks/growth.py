"""What grows, and what must not: with the effects of a turn, with the turns at once, with the ledger."""

from collections.abc import Sequence
from typing import Any

from benchmarks.compare import batch
from benchmarks.filling import fill
from benchmarks.rig import Rig
from benchmarks.sides import run_turn, side_of
from turnsaga.store import SqlStore

__all__ = ["with_effects", "with_ledger", "with_turns"]


async def with_effects(rig: Rig, side: str, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Return one line for each number of effects in one turn."""
    async with side_of(rig, side) as opened:
        await batch(rig, side, opened, at_once=1, turns=3, effects=3)
        lines = [
            await batch(rig, side, opened, at_once=1, turns=max(1, min(20, 300 // count)), effects=count)
            for count in counts
        ]
    return [{"bench": "effects", **line} for line in lines]


async def with_turns(rig: Rig, side: str, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Return one line for each number of turns at once."""
    async with side_of(rig, side) as opened:
        await batch(rig, side, opened, at_once=1, turns=3, effects=3)
        lines = [
            await batch(rig, side, opened, at_once=count, turns=max(32, count), effects=3) for count in counts
        ]
    return [{"bench": "turns", **line} for line in lines]


async def with_ledger(rig: Rig, side: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return one line for each number of effects that the ledger holds, small to large."""
    lines: list[dict[str, Any]] = []
    store = SqlStore(rig.databases[side])
    await store.open()
    async with side_of(rig, side) as opened:
        template = (await run_turn(rig, opened, 3)).turn
        copies = held = 0
        for size in sizes:
            copies = await fill(store, template, first=copies, effects=size - held)
            held = size
            await batch(rig, side, opened, at_once=1, turns=3, effects=3)
            line = await batch(rig, side, opened, at_once=1, turns=30, effects=3)
            lines.append({"bench": "ledger", "ledger_effects": size, **line})
    await store.close()
    return lines
