"""Which action follows from a ledger: release, resolve, undo, leave standing, hand over, close. Pure.

``plan`` reads rows and an instant and says what may be done next. It is asked again after every step,
so it carries no progress of its own: a worker that dies, a second abort, a deploy in the middle of
settling all end in the same question to the same rows.

The two orders that matter:

* nothing is undone while another effect of the turn is in doubt and has no owner, since that effect may
  still commit and would then have had to be undone first;
* what is undone goes in strict reverse order of commit, one at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from turnsaga.ledger import CLOSED, IN_DOUBT, UNDOABLE, State

__all__ = [
    "LEDGER_ONLY",
    "Action",
    "OnUnknown",
    "Plan",
    "Row",
    "Step",
    "halted",
    "may_send_again",
    "plan",
    "resolution",
]


class OnUnknown(StrEnum):
    """What a tool wants done about an outcome that got lost.

    ``COMPENSATE`` undoes it unasked, at once; ``PERSON`` sends nothing more and asks nobody but a person.
    """

    RESOLVE = "resolve"
    COMPENSATE = "compensate"
    PERSON = "person"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the plan needs to know of one effect.

    ``seq`` is its place among what the turn prepared, ``order`` that among its commits, ``owned`` says that
    it is shown as open to somebody who follows it. ``wire_until`` is the instant from which on no request of
    this effect can land any more, or None if none was sent or every one was answered; ``key_until`` the
    instant up to which a keyed request may be sent again. ``sends_left`` is what is left of the budget.
    ``halts`` says that those committed before it wait if its undo fails.
    """

    effect: str
    state: State
    seq: int = 0
    order: int | None = None
    owned: bool = False
    reversible: bool = True
    keyed: bool = False
    can_look_up: bool = False
    on_unknown: OnUnknown = OnUnknown.RESOLVE
    halts: bool = False
    key_dies_with_undo: bool = False
    undo_given_up: bool = False
    wire_until: datetime | None = None
    key_until: datetime | None = None
    sends_left: int = 1


class Action(StrEnum):
    """What can be done about one effect."""

    RELEASE = "release"
    LOOK_UP = "look_up"
    SEND_AGAIN = "send_again"
    FOLLOW_JOB = "follow_job"
    HAND_OVER = "hand_over"
    WAIT = "wait"
    UNDO = "undo"
    GIVE_UP_UNDO = "give_up_undo"
    LEAVE_STANDING = "leave_standing"


LEDGER_ONLY: Final = frozenset({Action.RELEASE, Action.HAND_OVER, Action.LEAVE_STANDING, Action.GIVE_UP_UNDO})
"""Actions that are transitions and nothing else: no call leaves the process for them."""


@dataclass(frozen=True)
class Step:
    """One action on one effect; ``until`` is set for ``WAIT``."""

    action: Action
    effect: str
    until: datetime | None = None


@dataclass(frozen=True)
class Plan:
    """The steps that may be taken now, in any order and side by side; no steps and ``settled`` is the end."""

    steps: tuple[Step, ...]
    settled: bool


def may_send_again(row: Row, *, fenced: bool, now: datetime) -> bool:
    """Tell whether the stored request may be sent once more under its key.

    Not past the key's life (the vendor would take it for a new one), not past the budget, and not once
    the turn is fenced if the effect can't be undone: an abort must not create what it can't take back.
    """
    alive = row.key_until is None or now <= row.key_until
    return row.keyed and alive and row.sends_left > 0 and (row.reversible or not fenced)


def resolution(row: Row, *, fenced: bool, now: datetime) -> Action:
    """Return how an effect in doubt is settled.

    While the turn lives, sending a keyed request again is the quickest way to its outcome. After the
    fence it is asked about, and sent again only where that is the one way to learn what happened.
    """
    if row.state is State.ACCEPTED:
        return Action.FOLLOW_JOB
    if row.on_unknown is OnUnknown.COMPENSATE:
        return Action.UNDO
    if row.on_unknown is OnUnknown.PERSON:
        return Action.HAND_OVER
    again = may_send_again(row, fenced=fenced, now=now)
    if row.can_look_up and (fenced or not again):
        return Action.LOOK_UP
    return Action.SEND_AGAIN if again else Action.HAND_OVER


def plan(rows: Sequence[Row], *, now: datetime) -> Plan:
    """Return what may be done next to settle a fenced turn whose own calls have all ended.

    Rows that are in doubt are resolved side by side; undo comes one at a time; the plan is ``settled``
    when every row is in a closed state or owned by somebody, or waits behind an undo that failed and that
    its tool wants looked at first.
    """
    released = tuple(Step(Action.RELEASE, row.effect) for row in rows if row.state is State.PREPARED)
    if released:
        return Plan(released, settled=False)
    doubtful = [row for row in rows if row.state in IN_DOUBT and not row.owned]
    resolved = [(row, resolution(row, fenced=True, now=now)) for row in doubtful]
    asked = tuple(Step(action, row.effect) for row, action in resolved if action is not Action.UNDO)
    if asked:
        return Plan(asked, settled=False)
    # What may have been done comes first: it was done last, if it was.
    if doubtful:
        return Plan((_undo(max(doubtful, key=lambda row: row.seq), now),), settled=False)
    waiting = halted(rows)
    undoable = [row for row in rows if row.state in UNDOABLE and row.effect not in waiting]
    if undoable:
        # An effect that committed after it was handed over has the highest order and comes first.
        return Plan((_undo(max(undoable, key=_place), now),), settled=False)
    closed = all(row.state in CLOSED or row.owned for row in rows)
    return Plan((), settled=closed)


def halted(rows: Sequence[Row]) -> frozenset[str]:
    """Return the committed effects whose undo waits, since one that comes first failed and asks for that."""
    barriers = [_place(row) for row in rows if row.state is State.COMPENSATION_FAILED and row.halts]
    if not barriers:
        return frozenset()
    first = max(barriers)
    return frozenset(row.effect for row in rows if row.state is State.COMMITTED and _place(row) < first)


def _place(row: Row) -> float:
    """Return a row's place among the turn's commits; one that has none may have been the last."""
    if row.state is State.COMMITTED:
        return row.order or 0
    return float("inf") if row.order is None else row.order


def _undo(row: Row, now: datetime) -> Step:
    if not row.reversible:
        return Step(Action.LEAVE_STANDING, row.effect)
    if row.undo_given_up:
        return Step(Action.GIVE_UP_UNDO, row.effect)
    # An undo that ends the key's life lets a request that is still under way create the object anew.
    if row.key_dies_with_undo and row.state is State.COMMITTED and row.wire_until and now < row.wire_until:
        return Step(Action.WAIT, row.effect, until=row.wire_until)
    return Step(Action.UNDO, row.effect)
