"""Turns that write records which they share, beside the same turns on records of their own."""

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.compare import percentiles
from benchmarks.machine import load
from benchmarks.rig import Rig
from benchmarks.shop import writer_name
from turnsaga.client import TurnClient
from turnsaga.ledger import TurnState
from turnsaga.models import Principal
from turnsaga.store import SqlStore

__all__ = ["shared"]

KINDS: Final = ("own", "shared")
_WHO: Final = Principal(tenant="bench", user="ada")
_AT_ONCE: Final = 16
_RECORDS: Final = 4


@dataclass(frozen=True)
class _Turn:
    """Two records in some order, and when their writes are committed."""

    records: tuple[str, str]
    policy: str


def _plans(kind: str, seed: int) -> list[_Turn]:
    """Return the same turns for both kinds, but for the names of the records."""
    chance = random.Random(seed)  # noqa: S311  # the same turns each time are what is wanted
    plans: list[_Turn] = []
    for number in range(_AT_ONCE):
        first, second = chance.sample(range(_RECORDS), 2)
        whose = f"{seed}" if kind == "shared" else f"{seed}-{number}"
        policy = chance.choice(["immediate", "turn_end"])
        plans.append(_Turn((f"r{whose}-{first}", f"r{whose}-{second}"), policy))
    return plans


async def shared(rig: Rig, side: str, *, waves: int, rounds: int) -> list[dict[str, Any]]:
    """Return one line a kind and round: so many times sixteen turns at once, the kinds alternating."""
    store = SqlStore(rig.databases[side])
    await store.open()
    turns = TurnClient(rig.client, store, task_queue=f"bench-{side}")
    lines: list[dict[str, Any]] = []
    try:
        for kind in KINDS:  # imports, pools and caches are no part of it
            await _wave(rig, turns, _plans(kind, 0))
        for number in range(1, rounds + 1):
            seeds = range(number * 1000, number * 1000 + waves)
            for kind in KINDS if number % 2 else reversed(KINDS):
                line = await _round(rig, side, turns, [_plans(kind, seed) for seed in seeds])
                lines.append({"bench": "shared", "round": number, "side": side, "records": kind, **line})
    finally:
        await store.close()
    return lines


async def _round(rig: Rig, side: str, turns: TurnClient, waves: Sequence[Sequence[_Turn]]) -> dict[str, Any]:
    await rig.ledger_ms(side)
    before, started = rig.cpu_ms(side), time.perf_counter()
    ran = [one for plans in waves for one in await _wave(rig, turns, plans)]
    took, after = time.perf_counter() - started, rig.cpu_ms(side)
    count = len(ran)
    cpu = {part: round((after[part] - before[part]) / count, 2) for part in after}
    ledger = await rig.ledger_ms(side)
    states: Counter[str] = Counter()
    for turn, _ in ran:
        view = await turns.view(_WHO, turn)
        if view.state is not TurnState.COMPLETED:
            raise RuntimeError(f"{turn} ended {view.state}: {view.reason}")
        states.update(effect.state.value for effect in view.effects)
    return {
        "at_once": _AT_ONCE,
        "turns": count,
        "turns_per_s": round(count / took, 3),
        "cpu_ms": cpu,
        "cpu_ms_total": round(sum(cpu.values()), 2),
        "turn_ms": percentiles([ms for _, ms in ran]),
        "effects": dict(states),
        "ledger_transactions_per_turn": round(len(ledger) / count, 1),
        "ledger_ms": percentiles(ledger),
        "load": load(),
    }


async def _wave(rig: Rig, turns: TurnClient, plans: Sequence[_Turn]) -> list[tuple[str, float]]:
    """Run these turns at once; return each with the time that it took, in ms."""
    return await asyncio.gather(*(_run(rig, turns, plan) for plan in plans))


async def _run(rig: Rig, turns: TurnClient, plan: _Turn) -> tuple[str, float]:
    name = secrets.token_hex(8)
    begun = time.perf_counter()
    started = await turns.start(
        _WHO,
        f"c-{name}",
        message="Write both.",
        start_key=name,
        model=writer_name(plan.records),
        policies={"write": plan.policy},
    )
    await rig.client.get_workflow_handle(started.ref.turn).result()
    return started.ref.turn, (time.perf_counter() - begun) * 1000
