"""What each step of the reference model stands for in the library's own words.

The model labels its steps in prose. The tables below read a label as events of ``ledger.py`` and as
actions of ``settle.py``; a label that moves an effect and that no table reads fails the tests.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from turnsaga.ledger import Event, State, TurnEventName, TurnState
from turnsaga.settle import Action

__all__ = ["CLAIMS", "SETTLED", "Reading", "action_of", "events_of", "turn_events_of"]

CLAIMS: Final = frozenset({Event.GATE_OPENED, Event.CLAIMED_AGAIN, Event.UNDO_CLAIMED})
"""Events by which an attempt gets the row's current token."""

SETTLED: Final = "settled"
"""Stands for the model's step that closes the turn; in the library it is ``Plan.settled``."""


class Reading(NamedTuple):
    """A label is read as ``events``, if the effect was in one of the states ``before`` (None: in any)."""

    label: str
    events: tuple[Event, ...]
    before: frozenset[State | None] | None = None


_READINGS: Final[Sequence[Reading]] = (
    # A reset run prepares again: the row is there already, and stays as it is.
    Reading(r"E\d prepared", (Event.REQUEST_STORED,), frozenset({None})),
    Reading(r"R\d releases E\d", (Event.DROPPED,)),
    Reading(r"E\d commit #\d gate: resource wait is over, released", (Event.DROPPED,)),
    Reading(r"E\d commit #\d gate opens", (Event.GATE_OPENED,)),
    Reading(r"E\d commit #\d takes the claim over, same key", (Event.CLAIMED_AGAIN,)),
    Reading(r"R\d look-up E\d: not applied -> sent again", (Event.CLAIMED_AGAIN,)),
    Reading(r"E\d commit #\d writes committed", (Event.COMMIT_CONFIRMED,)),
    Reading(r"E\d commit #\d writes failed", (Event.COMMIT_REFUSED,)),
    Reading(r"E\d commit #\d writes accepted", (Event.JOB_ACCEPTED,)),
    Reading(r"E\d commit #\d writes unknown", (Event.COMMIT_LOST,)),
    Reading(r"E\d commit #\d finds an earlier attempt -> unknown", (Event.COMMIT_LOST,)),
    Reading(r"E\d commit #\d does not send again", (Event.COMMIT_LOST,)),
    Reading(r"E\d commit #\d is stale, but knows: committed", (Event.EVIDENCE_ARRIVED,)),
    # A look-up first takes the claim away from the attempt that holds it; its answer is a step of its own.
    Reading(
        r"R\d looks E\d up: (found|not found|not found yet -> unknown)",
        (Event.COMMIT_LOST,),
        frozenset({State.COMMITTING}),
    ),
    Reading(r"R\d look-up found E\d: committed", (Event.FOUND_APPLIED,)),
    Reading(r"R\d look-up found E\d: accepted", (Event.FOUND_JOB,)),
    Reading(r"R\d look-up found E\d: failed", (Event.PROVED_NOT_APPLIED,)),
    Reading(r"R\d look-up E\d: not found, no longer possible -> failed", (Event.PROVED_NOT_APPLIED,)),
    Reading(
        r"R\d E\d unknown: a person is asked",
        (Event.COMMIT_LOST, Event.HANDED_OVER),
        frozenset({State.COMMITTING}),
    ),
    Reading(r"R\d E\d unknown: a person is asked", (Event.HANDED_OVER,), frozenset({State.UNKNOWN})),
    Reading(r"R\d E\d wait bound over: handed to an owner", (Event.HANDED_OVER,)),
    Reading(r"R(\d|follow) E\d job has landed -> committed", (Event.JOB_LANDED,)),
    Reading(r"R(\d|follow) E\d job was cancelled -> failed", (Event.JOB_CANCELLED,)),
    Reading(r"E\d undo #\d (claims|takes the claim over)", (Event.UNDO_CLAIMED,)),
    Reading(r"E\d undo #\d: may have been undone, a person is asked", (Event.UNDO_FAILED,)),
    Reading(r"E\d undo #\d writes compensated", (Event.UNDO_CONFIRMED,)),
    Reading(r"E\d undo #\d writes compensation_failed", (Event.UNDO_FAILED,)),
    # Every attempt died before its own claim: the model takes one step, the ledger goes by way of a claim.
    Reading(
        r"R\d E\d undo could not be completed",
        (Event.UNDO_CLAIMED, Event.UNDO_FAILED),
        frozenset({State.COMMITTED}),
    ),
    Reading(r"R\d E\d undo could not be completed", (Event.UNDO_FAILED,), frozenset({State.COMPENSATING})),
    Reading(r"R\d E\d stands: irreversible", (Event.LEFT_STANDING,)),
)

_TURN_READINGS: Final[Sequence[tuple[str, TurnEventName, TurnState]]] = (
    # An abort of a turn that is being aborted already changes nothing: the first one counts.
    (r"T\d web: fence is written", TurnEventName.ABORT_ACCEPTED, TurnState.RUNNING),
    (r"R\d writes the fence", TurnEventName.ABORT_ACCEPTED, TurnState.RUNNING),
    (r"R\d T\d completed", TurnEventName.COMPLETED, TurnState.RUNNING),
    # A settled turn that was taken up again, since an effect landed late, stays aborted throughout.
    (r"R\d T\d settled", TurnEventName.SETTLED, TurnState.ABORTING),
)

_ACTIONS: Final[Sequence[tuple[str, Action | None]]] = (
    (r"releases E(\d)", Action.RELEASE),
    # The plan's one step "look up" is two of the model's: asking, and writing the answer.
    (r"looks E(\d) up: .*", Action.LOOK_UP),
    (r"look-up found E(\d): .*", Action.LOOK_UP),
    (r"look-up E(\d): not found, no longer possible -> failed", Action.LOOK_UP),
    (r"asks for E(\d) again, same key", Action.SEND_AGAIN),
    (r"E(\d) unknown: a person is asked", Action.HAND_OVER),
    # The plan's one step "follow the job" is three: asking it to cancel, and either end.
    (r"E(\d) job (?:cancel is asked|has landed -> committed|was cancelled -> failed)", Action.FOLLOW_JOB),
    (r"asks for undo E(\d)", Action.UNDO),
    (r"E(\d) undo could not be completed", Action.GIVE_UP_UNDO),
    (r"E(\d) stands: irreversible", Action.LEAVE_STANDING),
    # Not planned from rows: whoever carries a look-up out stops when its time is over.
    (r"E(\d) wait bound over: handed to an owner", None),
)


def events_of(label: str, before: State | None) -> tuple[Event, ...]:
    """Return the events that a step stands for; empty if it moves no effect that was in ``before``."""
    for reading in _matching(label):
        if reading.before is None or before in reading.before:
            return reading.events
    return ()


def turn_events_of(label: str, before: TurnState) -> tuple[TurnEventName, ...]:
    """Return the event of the turn that a step stands for, if any."""
    return tuple(
        event for pattern, event, state in _TURN_READINGS if state is before and re.fullmatch(pattern, label)
    )


@cache
def action_of(label: str) -> tuple[Action | None, int] | str:
    """Return the action and the effect's number that a settling run's step stands for, or ``SETTLED``.

    Raises:
        LookupError: no table reads the label.
    """
    step = re.sub(r"^R\d ", "", label)
    if re.fullmatch(r"T\d settled", step):
        return SETTLED
    for pattern, action in _ACTIONS:
        match = re.fullmatch(pattern, step)
        if match:
            return action, int(match[1])
    raise LookupError(label)


@cache
def _matching(label: str) -> tuple[Reading, ...]:
    return tuple(reading for reading in _READINGS if re.fullmatch(reading.label, label))
