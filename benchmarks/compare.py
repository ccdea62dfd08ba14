"""The same turns on both sides, alternating in one run on one server."""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.machine import load
from benchmarks.rig import Rig
from benchmarks.sides import Ran, Side, TurnFigures, figures, run_turn, side_of

__all__ = ["batch", "compare", "percentiles"]


async def compare(
    rig: Rig, sides: Sequence[str], *, at_once: int, turns: int, rounds: int, effects: int = 3
) -> list[dict[str, Any]]:
    """Return one line a side and round."""
    lines: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        opened = {name: await stack.enter_async_context(side_of(rig, name)) for name in sides}
        for name, side in opened.items():  # imports, pools and caches are no part of it
            await batch(rig, name, side, at_once=at_once, turns=min(turns, 2 * at_once), effects=effects)
        for number, order in enumerate(_orders(sides, rounds), 1):
            for name in order:
                line = await batch(rig, name, opened[name], at_once=at_once, turns=turns, effects=effects)
                lines.append({"bench": "compare", "round": number, **line})
    return lines


def _orders(sides: Sequence[str], rounds: int) -> Iterator[tuple[str, ...]]:
    # Each side goes first as often as the others: what grows meanwhile is the same for all.
    for number in range(rounds):
        turn = number % len(sides)
        yield (*sides[turn:], *sides[:turn])


async def batch(rig: Rig, name: str, side: Side, *, at_once: int, turns: int, effects: int) -> dict[str, Any]:
    """Run turns of one side, so many at once, and return what it took."""
    waiting = iter(range(turns))
    ran: list[Ran] = []

    async def lane() -> None:
        for _ in waiting:
            one = await run_turn(rig, side, effects)
            ran.append(one)

    if name != "bare":
        await rig.ledger_ms(name)
    before, started = rig.cpu_ms(name), time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(at_once)))
    took, after = time.perf_counter() - started, rig.cpu_ms(name)
    cpu = {part: round((after[part] - before[part]) / turns, 2) for part in after}
    ledger = [] if name == "bare" else await rig.ledger_ms(name)
    found = [await figures(rig, side, one) for one in ran]
    return {
        "side": name,
        "at_once": at_once,
        "turns": turns,
        "effects": effects,
        "turns_per_s": round(turns / took, 3),
        "cpu_ms": cpu,
        "cpu_ms_total": round(sum(cpu.values()), 2),
        **_latencies(found),
        "history_events_per_effect": round(statistics.mean(one.history_events for one in found) / effects, 2),
        "history_bytes_per_effect": round(statistics.mean(one.history_bytes for one in found) / effects),
        "ledger_transactions_per_turn": round(len(ledger) / turns, 1),
        "ledger_ms": percentiles(ledger) if ledger else None,
        "load": load(),
    }


def _latencies(found: Sequence[TurnFigures]) -> dict[str, Any]:
    fences = [one.fence_ms for one in found if one.fence_ms is not None]
    return {
        "ack_ms": percentiles([one.ack_ms for one in found]),
        "fence_ms": percentiles(fences) if fences else None,
        "undone_ms": percentiles([one.undone_ms for one in found]),
        "closed_ms": percentiles([one.closed_ms for one in found]),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile; of fewer than 100 values that is the largest."""
    ordered = sorted(values)
    last = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"p50": round(statistics.median(ordered), 2), "p99": round(last, 2)}
