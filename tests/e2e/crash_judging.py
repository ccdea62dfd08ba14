"""What became of a turn whose worker was killed: by the ledger, the vendors, and what people are told."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.crash_cells import NEEDS_A_PERSON, Cell
from tests.stack import Turns, say
from turnsaga.ledger import State
from turnsaga.models import EffectView, TurnView
from turnsaga.store import Started
from turnsaga.testing import OPEN, Truth, differences, disorder

__all__ = ["CRASHES", "Judged", "UnderWay", "judge", "write_report"]

REPORT: Final = "TURNSAGA_CRASH_REPORT"
CRASHES: Final = int(os.environ.get("TURNSAGA_CRASHES", "1"))
"""How often each kill is done; the figures of docs/crashes.md are of five."""


@dataclass(frozen=True)
class UnderWay:
    """A cell's turn, which belongs to an account of its own."""

    cell: Cell
    turns: Turns
    started: Started

    async def view(self) -> TurnView:
        return await self.turns.view(self.started)

    async def stop(self) -> None:
        answer = await self.turns.turns.abort(self.turns.who, self.started.ref.turn)
        assert answer.first, f"{self.cell.name} had ended, or was stopped by something else"

    async def effect(self) -> EffectView | None:
        """Return the effect that is in hand at the kill."""
        return _named(await self.view(), self.cell.identity)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What became of a cell: the ends of its effects, and what is wrong with them.

    ``lost``: the ledger and the vendor disagree on what stands. ``silent``: in doubt, or standing although
    it was stopped, and not shown as such. ``duplicates`` counts what was applied or undone once too often,
    and what was sent again to a system that can't take that.
    """

    point: int
    kind: str
    stopped: bool
    outcome: str
    turn: str
    earlier: str | None
    person: bool
    duplicates: int
    lost: tuple[str, ...]
    silent: tuple[str, ...]
    disorder: tuple[str, ...]
    next_turn: str
    seconds: float

    @property
    def key(self) -> tuple[int, str, bool]:
        """Its cell's key."""
        return self.point, self.kind, self.stopped


async def judge(turn: UnderWay, view: TurnView, seconds: float, truth: Mapping[str, Any]) -> Judged:
    """Hold a turn that has settled ``seconds`` after the kill against what really happened."""
    cell, turns = turn.cell, turn.turns
    names = [name for name in (cell.name, cell.earlier) if name is not None]
    identities = {cell.kind.identity(name) for name in names}
    true = Truth.model_validate(
        {"effects": [each for each in truth["effects"] if each["identity"] in identities]}
    )
    effect = _named(view, cell.identity)
    earlier = None if cell.earlier is None else _named(view, cell.kind.identity(cell.earlier))
    told, next_turn = await _told(turn)
    shown = {each.effect for each in await turns.store.account_effects(turns.who, outstanding=True)}
    return Judged(
        point=int(cell.point),
        kind=cell.kind.name,
        stopped=cell.stopped,
        outcome="nothing" if effect is None else effect.state.value,
        turn=view.state.value,
        earlier=None if earlier is None else earlier.state.value,
        person=any(each.needs_attention for each in view.effects),
        duplicates=sum(_duplicates(cell, identity, truth) for identity in identities),
        lost=differences(view.effects, true, turns.systems()),
        silent=tuple(_silent(view, shown, told)),
        disorder=disorder(await turns.events(turn.started)),
        next_turn=next_turn,
        seconds=round(seconds, 1),
    )


def _duplicates(cell: Cell, identity: str, truth: Mapping[str, Any]) -> int:
    """Count what was done once too often, or sent once too often to a system that would do it twice."""
    applied = sum(each["applied"] for each in truth["effects"] if each["identity"] == identity)
    found = 0
    for op, keyed, done in (("apply", cell.kind.keyed, applied), ("undo", cell.kind.undo_keyed, 0)):
        calls = [each for each in truth["calls"] if (each["op"], each["identity"]) == (op, identity)]
        landed = sum(each["applied_at"] is not None for each in calls)
        sent = len(calls) if landed and not keyed else 0
        found += max(0, done - 1, landed - 1, sent - 1)
    return found


def _silent(view: TurnView, shown: set[str], told: str) -> Iterable[str]:
    for effect in view.effects:
        if effect.state in OPEN | {State.PREPARED} and not effect.needs_attention:
            yield f"{effect.title} rests {effect.state}"
        outstanding = effect.state.value in NEEDS_A_PERSON or effect.state is State.STANDING
        if outstanding and (effect.effect not in shown or effect.title not in told):
            yield f"{effect.title} is {effect.state}, and nobody is told"


async def _told(turn: UnderWay) -> tuple[str, str]:
    """Return what the conversation's next turn is told of this one, and how it ends."""
    following = await turn.turns.start(say("{{context}}"), conversation=turn.cell.name)
    view = await turn.turns.settled(following)
    events = await turn.turns.events(following)
    return "".join(str(event.data.get("text", "")) for event in events), view.state.value


def _named(view: TurnView, identity: str) -> EffectView | None:
    return next((effect for effect in view.effects if effect.identity == identity), None)


def write_report(lines: Iterable[Mapping[str, Any]]) -> None:
    """Add lines of JSON to the report, if one is wanted."""
    if REPORT in os.environ:
        with Path(os.environ[REPORT]).open("a", encoding="utf-8") as report:
            report.writelines(json.dumps(line) + "\n" for line in lines)
