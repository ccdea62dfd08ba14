"""The states of effects and turns, what can happen to them, and which state follows: all of it as data.

Everything that decides a transition is in this file, and ``advance`` and ``advance_turn`` are the only
ways through it. A pair that is missing from a table is an error and changes nothing. The file knows
nothing of databases, clocks or Temporal: who may cause an event, and when, is decided elsewhere
(``settle.py`` plans, ``store/`` compares and sets); which state it leads to is decided here.

``docs/ledger.md`` draws its diagram from these tables, and ``tests/model`` holds them against the
reference model that enumerates the protocol.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from turnsaga.errors import IllegalTransition

__all__ = [
    "BLOCKS_IDENTITY",
    "CLOSED",
    "IN_DOUBT",
    "OCCUPYING",
    "OPEN_TURN",
    "TRANSITIONS",
    "TURN_TRANSITIONS",
    "UNDOABLE",
    "Event",
    "State",
    "TurnEventName",
    "TurnState",
    "advance",
    "advance_turn",
]


class State(StrEnum):
    """Where one effect stands."""

    PREPARED = "prepared"
    RELEASED = "released"
    COMMITTING = "committing"
    ACCEPTED = "accepted"
    COMMITTED = "committed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"
    STANDING = "standing"


class Event(StrEnum):
    """What can happen to one effect."""

    REQUEST_STORED = "request_stored"
    DROPPED = "dropped"
    GATE_OPENED = "gate_opened"
    CLAIMED_AGAIN = "claimed_again"
    COMMIT_CONFIRMED = "commit_confirmed"
    COMMIT_REFUSED = "commit_refused"
    COMMIT_LOST = "commit_lost"
    JOB_ACCEPTED = "job_accepted"
    JOB_LANDED = "job_landed"
    JOB_CANCELLED = "job_cancelled"
    FOUND_APPLIED = "found_applied"
    FOUND_JOB = "found_job"
    PROVED_NOT_APPLIED = "proved_not_applied"
    EVIDENCE_ARRIVED = "evidence_arrived"
    HANDED_OVER = "handed_over"
    UNDO_CLAIMED = "undo_claimed"
    UNDO_CONFIRMED = "undo_confirmed"
    UNDO_FAILED = "undo_failed"
    UNDO_OVERTAKEN = "undo_overtaken"
    LEFT_STANDING = "left_standing"
    RESOLVED_APPLIED = "resolved_applied"
    RESOLVED_NOT_APPLIED = "resolved_not_applied"
    RESOLVED_UNDONE = "resolved_undone"
    RESOLVED_STANDS = "resolved_stands"


TRANSITIONS: Final[Mapping[tuple[State | None, Event], State]] = MappingProxyType(
    {
        # Before anything is sent.
        (None, Event.REQUEST_STORED): State.PREPARED,
        (State.PREPARED, Event.DROPPED): State.RELEASED,
        (State.PREPARED, Event.GATE_OPENED): State.COMMITTING,
        # One attempt holds the claim. A later attempt may take it over, under a new token.
        (State.COMMITTING, Event.CLAIMED_AGAIN): State.COMMITTING,
        (State.COMMITTING, Event.COMMIT_CONFIRMED): State.COMMITTED,
        (State.COMMITTING, Event.COMMIT_REFUSED): State.FAILED,
        (State.COMMITTING, Event.JOB_ACCEPTED): State.ACCEPTED,
        (State.COMMITTING, Event.COMMIT_LOST): State.UNKNOWN,
        # May or may not have been applied. COMMIT_LOST again makes every claim stale: nobody may
        # write on the strength of an attempt that began before the question was asked anew.
        (State.UNKNOWN, Event.COMMIT_LOST): State.UNKNOWN,
        (State.UNKNOWN, Event.CLAIMED_AGAIN): State.COMMITTING,
        (State.UNKNOWN, Event.FOUND_APPLIED): State.COMMITTED,
        (State.UNKNOWN, Event.FOUND_JOB): State.ACCEPTED,
        (State.UNKNOWN, Event.PROVED_NOT_APPLIED): State.FAILED,
        (State.UNKNOWN, Event.EVIDENCE_ARRIVED): State.COMMITTED,
        (State.UNKNOWN, Event.HANDED_OVER): State.UNKNOWN,
        # An asynchronous job is followed to its own end; the reply to a cancel is not one.
        (State.ACCEPTED, Event.JOB_LANDED): State.COMMITTED,
        (State.ACCEPTED, Event.JOB_CANCELLED): State.FAILED,
        (State.ACCEPTED, Event.HANDED_OVER): State.ACCEPTED,
        # Undo. It starts from a known commit, and claims its row before it is sent.
        (State.COMMITTED, Event.UNDO_CLAIMED): State.COMPENSATING,
        (State.COMMITTED, Event.LEFT_STANDING): State.STANDING,
        (State.COMPENSATING, Event.UNDO_CLAIMED): State.COMPENSATING,
        # Only where the tool declares that an undo of nothing is harmless and stops a late landing.
        (State.UNKNOWN, Event.UNDO_CLAIMED): State.COMPENSATING,
        (State.COMPENSATING, Event.UNDO_CONFIRMED): State.COMPENSATED,
        (State.COMPENSATING, Event.UNDO_FAILED): State.COMPENSATION_FAILED,
        (State.COMPENSATING, Event.UNDO_OVERTAKEN): State.STANDING,
        # A person's word, where nothing else can tell what happened outside.
        (State.UNKNOWN, Event.RESOLVED_APPLIED): State.COMMITTED,
        (State.UNKNOWN, Event.RESOLVED_NOT_APPLIED): State.FAILED,
        (State.COMPENSATION_FAILED, Event.RESOLVED_UNDONE): State.COMPENSATED,
        (State.COMPENSATION_FAILED, Event.RESOLVED_STANDS): State.STANDING,
    }
)

CLOSED: Final = frozenset({State.RELEASED, State.COMMITTED, State.FAILED, State.COMPENSATED, State.STANDING})
"""States that need nothing more; ``committed`` only while its turn stands."""

IN_DOUBT: Final = frozenset({State.COMMITTING, State.ACCEPTED, State.UNKNOWN})
"""States in which the effect may be committed later."""

UNDOABLE: Final = frozenset({State.COMMITTED, State.COMPENSATING})
"""States from which settling goes on to an undo."""

BLOCKS_IDENTITY: Final = IN_DOUBT | {State.COMPENSATING, State.COMPENSATION_FAILED}
"""States in which no other commit on the same business identity may start."""


class TurnState(StrEnum):
    """Where one turn stands."""

    QUEUED = "queued"
    RUNNING = "running"
    ABORTING = "aborting"
    FAILING = "failing"
    COMPLETED = "completed"
    ABORTED = "aborted"
    FAILED = "failed"


class TurnEventName(StrEnum):
    """What can happen to one turn."""

    BEGUN = "begun"
    ABORT_ACCEPTED = "abort_accepted"
    FAILURE_MET = "failure_met"
    COMPLETED = "completed"
    SETTLED = "settled"


TURN_TRANSITIONS: Final[Mapping[tuple[TurnState, TurnEventName], TurnState]] = MappingProxyType(
    {
        # Behind another turn of its conversation. It has done nothing, so it ends without settling.
        (TurnState.QUEUED, TurnEventName.BEGUN): TurnState.RUNNING,
        (TurnState.QUEUED, TurnEventName.ABORT_ACCEPTED): TurnState.ABORTED,
        (TurnState.QUEUED, TurnEventName.FAILURE_MET): TurnState.FAILED,
        # The first three race; each is one compare-and-set on a turn that runs, so one of them wins.
        (TurnState.RUNNING, TurnEventName.ABORT_ACCEPTED): TurnState.ABORTING,
        (TurnState.RUNNING, TurnEventName.FAILURE_MET): TurnState.FAILING,
        (TurnState.RUNNING, TurnEventName.COMPLETED): TurnState.COMPLETED,
        (TurnState.ABORTING, TurnEventName.SETTLED): TurnState.ABORTED,
        (TurnState.FAILING, TurnEventName.SETTLED): TurnState.FAILED,
    }
)

OCCUPYING: Final = frozenset({TurnState.RUNNING, TurnState.ABORTING, TurnState.FAILING})
"""States of a turn that occupies its conversation."""

OPEN_TURN: Final = OCCUPYING | {TurnState.QUEUED}
"""States of a turn that hasn't ended."""


def advance(state: State | None, event: Event) -> State:
    """Return the state that ``event`` leads to; ``None`` stands for an effect that has no row yet.

    Raises:
        IllegalTransition: the table has no such pair; nothing changes.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition("effect", state, event) from None


def advance_turn(state: TurnState, event: TurnEventName) -> TurnState:
    """Return the state of the turn that ``event`` leads to.

    Raises:
        IllegalTransition: the table has no such pair; nothing changes.
    """
    try:
        return TURN_TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition("turn", state, event) from None
