"""The leak matrix: turns that end in every way, and then a look into the mailbox.

What is counted are mails by their business identity, in what the vendors themselves say happened. Neither
a formula nor a ledger has a part in it; the ledger is held against the same truth beside it.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.leaks.endings import ENDINGS, Bill, Ending, Ran
from benchmarks.leaks.rig import LeakRig
from benchmarks.leaks.sides import ANSWER_WITHIN_S, BareTurn, OurTurn, Turn
from benchmarks.machine import load
from turnsaga.models import EffectView
from turnsaga.testing import Truth, differences

__all__ = ["leak_matrix"]

AT_ONCE: Final = 8
HELD_AT_A_KILL: Final = 20

_SIDES: Final[Mapping[str, type[OurTurn] | type[BareTurn]]] = {"turnsaga": OurTurn, "bare": BareTurn}


@dataclass(frozen=True)
class _Row:
    side: str
    ending: Ending
    ran: Sequence[Ran]
    load: list[float]


async def leak_matrix(rig: LeakRig, *, turns: int) -> list[dict[str, Any]]:
    """Run so many turns of every ending on both sides; return one line a side and ending."""
    ran: list[_Row] = []
    for ending in ENDINGS:
        async with _circumstances(rig, ending):
            ended = await asyncio.gather(*(_run(rig, side, ending, turns) for side in _SIDES))
        ran += [_Row(side, ending, each, load()) for side, each in zip(_SIDES, ended, strict=True)]
    # A mail that is held by its delay still would be no leak yet.
    await asyncio.sleep(max(0.0, rig.quiet_at - asyncio.get_running_loop().time()) + 1)
    truth = Truth.model_validate(await rig.sandbox.truth())
    return [await _line(rig, truth, row) for row in ran]


@asynccontextmanager
async def _circumstances(rig: LeakRig, ending: Ending) -> AsyncIterator[None]:
    ours = rig.workers["turnsaga"]
    if ending.name == "failed_tool":
        # A card takes longer than a mail, here as at the vendors.
        declined = {"status": 402, "times": 1_000_000}
        await rig.sandbox.knobs("pay", fail=declined, latency_ms=300, only={"op": "apply"})
    if ending.name == "unanswered":
        await ours.end(signal.SIGTERM)
        await ours.start(TURNSAGA_CONFIRM_WITHIN_S=str(ANSWER_WITHIN_S))
    yield
    await rig.sandbox.clear()
    if ending.name == "unanswered":
        await ours.end(signal.SIGTERM)
        await ours.start()


async def _run(rig: LeakRig, side: str, ending: Ending, turns: int) -> list[Ran]:
    bills = [Bill(ending, f"{rig.run}-{side}-{ending.name}-{number}", number) for number in range(turns)]
    if ending.killed:
        parts = [bills[at : at + HELD_AT_A_KILL] for at in range(0, turns, HELD_AT_A_KILL)]
        return [ran for part in parts for ran in await _through_a_kill(rig, side, part)]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(bill: Bill) -> Ran:
        async with gate:
            turn = _SIDES[side](rig, bill)
            await turn.begin()
            await turn.end()
            return await turn.settle()

    return list(await asyncio.gather(*map(one, bills)))


async def _through_a_kill(rig: LeakRig, side: str, bills: Sequence[Bill]) -> list[Ran]:
    """Begin these turns, kill the worker of all of them, and end them: half before it is back."""
    worker = rig.workers[side]
    turns: dict[Bill, Turn] = {bill: _SIDES[side](rig, bill) for bill in bills}
    await asyncio.gather(*(turn.begin() for turn in turns.values()))
    await worker.end(signal.SIGKILL)
    await asyncio.gather(*(turn.end() for bill, turn in turns.items() if bill.ended_while_dead))
    await worker.start()
    await asyncio.gather(*(turn.end() for bill, turn in turns.items() if not bill.ended_while_dead))
    return list(await asyncio.gather(*(turn.settle() for turn in turns.values())))


async def _line(rig: LeakRig, truth: Truth, row: _Row) -> dict[str, Any]:
    mails = {true.identity: true.applied for true in truth.effects if true.system == "mail"}
    charges = {true.identity: true for true in truth.effects if true.system == "pay"}
    forbidden = [invoice for one in row.ran for invoice in one.bill.forbidden]
    wanted = [invoice for one in row.ran for invoice in one.bill.wanted]
    charged = [charges[one.bill.name] for one in row.ran if one.bill.name in charges]
    line: dict[str, Any] = {
        "bench": "leaks",
        "side": row.side,
        "ending": row.ending.name,
        "words": row.ending.words,
        "turns": len(row.ran),
        "forbidden": len(forbidden),
        "leaked": sum(mails.get(invoice, 0) > 0 for invoice in forbidden),
        "wanted": len(wanted),
        "arrived": sum(mails.get(invoice, 0) == 1 for invoice in wanted),
        "doubled": sum(mails.get(invoice, 0) > 1 for invoice in (*forbidden, *wanted)),
        "charged": sum(charge.applied for charge in charged),
        "refunded": sum(charge.undone for charge in charged),
        "ended": dict(Counter(one.state for one in row.ran)),
        "load": row.load,
    }
    if row.side == "turnsaga":
        effects = await _effects(rig, row.ran)
        line["prepared"] = sum(one.prepared for one in row.ran)
        line["late_answers_taken"] = sum(one.late_taken for one in row.ran)
        line["differences"] = list(differences(effects, _of(truth, rig, effects), rig.turns.systems()))
    return line


async def _effects(rig: LeakRig, ran: Sequence[Ran]) -> list[EffectView]:
    turns = rig.turns
    views = [await turns.turns.view(turns.who, turn) for one in ran for turn in one.turns]
    return [effect for view in views for effect in view.effects]


def _of(truth: Truth, rig: LeakRig, effects: Sequence[EffectView]) -> Truth:
    systems = rig.turns.systems()
    places = {(systems[effect.tool], effect.identity) for effect in effects}
    return Truth(effects=tuple(true for true in truth.effects if (true.system, true.identity) in places))
