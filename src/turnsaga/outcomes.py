"""What a downstream system's answer to a commit proves, and what follows from it: all of it as data.

A tool reads its vendor's answer once, as one of ``Answer``; ``KNOWN`` says what that proves, ``learned``
raises it in the words of ``errors``, and ``then`` says what the engine does about it. ``docs/outcomes.md``
shows the tables. What only some vendors say (a declined card, a duplicate name) stays with their tools.

The statuses are those of HTTP; other wires have the same kinds.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from turnsaga.errors import NotApplied, OutcomeUnknown, StillRunning, ToolOutcome
from turnsaga.ledger import State
from turnsaga.settle import Action, OnUnknown, Row, resolution

__all__ = ["KNOWN", "Answer", "Known", "learned", "read_status", "then"]


class Answer(StrEnum):
    """How a commit's call ended, as seen from here."""

    DONE = "done"
    NEVER_SENT = "never_sent"
    CUT_OFF = "cut_off"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    IN_PROGRESS = "in_progress"
    OTHER_REQUEST = "other_request"
    TOO_MANY = "too_many"
    SERVER_ERROR = "server_error"
    REPLAYED_ERROR = "replayed_error"
    UNREADABLE = "unreadable"
    UNEXPECTED = "unexpected"


class Known(StrEnum):
    """What is known of the effect then. ``FINAL``: nothing, and asking the same again tells no more."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    RUNNING = "running"
    UNKNOWN = "unknown"
    FINAL = "final"


KNOWN: Final[Mapping[Answer, Known]] = MappingProxyType(
    {
        Answer.DONE: Known.APPLIED,
        # No connection came about, so nothing of the request has left.
        Answer.NEVER_SENT: Known.NOT_APPLIED,
        Answer.CUT_OFF: Known.UNKNOWN,
        Answer.TIMED_OUT: Known.UNKNOWN,
        # The system read the request and says no.
        Answer.REFUSED: Known.NOT_APPLIED,
        Answer.IN_PROGRESS: Known.RUNNING,
        # The key was used with another body, and that call may well have been applied.
        Answer.OTHER_REQUEST: Known.FINAL,
        # A gateway that counts answers says this after the system has worked.
        Answer.TOO_MANY: Known.UNKNOWN,
        Answer.SERVER_ERROR: Known.UNKNOWN,
        # A system that stores its answers by key gives a stored 500 for as long as the key lives.
        Answer.REPLAYED_ERROR: Known.FINAL,
        # It says success and shows nothing for it: a proxy's page looks like this, too.
        Answer.UNREADABLE: Known.UNKNOWN,
        Answer.UNEXPECTED: Known.UNKNOWN,
    }
)

_SAYS: Final[Mapping[Answer, str]] = MappingProxyType(
    {
        Answer.NEVER_SENT: "can't be reached; nothing was sent",
        Answer.CUT_OFF: "gave no answer",
        Answer.TIMED_OUT: "gave no answer in time",
        Answer.REFUSED: "refuses it",
        Answer.IN_PROGRESS: "is still at this key",
        Answer.OTHER_REQUEST: "knows this key with another body",
        Answer.TOO_MANY: "is asked too often, which proves nothing",
        Answer.SERVER_ERROR: "answered with an error, which proves nothing",
        Answer.REPLAYED_ERROR: "repeats an error that it has stored, which proves nothing",
        Answer.UNREADABLE: "gave an answer that can't be read",
        Answer.UNEXPECTED: "gave an answer that proves nothing",
    }
)

_PROVES_NOTHING: Final = frozenset({408, 425, 499})
"""4xx that speak of the connection and not of the request: it may have been passed on before."""


def read_status(status: int, *, replayed: bool = False) -> Answer:
    """Return the kind of an HTTP answer.

    A 409 is a refusal here; a tool whose vendor means "in progress" or "another body" by it says so itself.

    Args:
        status: the HTTP status, 100 to 599.
        replayed: the system marked the answer as one that it had stored under the key.
    """
    if 200 <= status < 300:
        return Answer.DONE
    if status == 429:
        return Answer.TOO_MANY
    if 400 <= status < 500 and status not in _PROVES_NOTHING:
        return Answer.REFUSED
    if status >= 500:
        return Answer.REPLAYED_ERROR if replayed else Answer.SERVER_ERROR
    return Answer.UNEXPECTED


def learned(answer: Answer, who: str, detail: str | int | None = None) -> ToolOutcome:
    """Return the error by which a tool's ``commit`` says what an answer other than success proves.

    Its reason is a sentence for people and for the model.

    Args:
        answer: the kind of the answer.
        who: the system, as people know it: "PAY".
        detail: what the answer was, such as its status. No credential and no body: it is stored and shown.

    Raises:
        ValueError: the answer is success, which a tool returns as ``Committed``.
    """
    if answer is Answer.DONE:
        raise ValueError("success isn't an error: return Committed")
    reason = f"{who} {_SAYS[answer]}" + (f" ({detail})" if detail is not None else "")
    match KNOWN[answer]:
        case Known.NOT_APPLIED:
            return NotApplied(reason)
        case Known.RUNNING:
            return StillRunning(reason)
        case known:
            return OutcomeUnknown(reason, final=known is Known.FINAL)


def then(
    known: Known,
    *,
    keyed: bool,
    can_look_up: bool,
    stopped: bool = False,
    reversible: bool = True,
    on_unknown: OnUnknown = OnUnknown.RESOLVE,
) -> State | Action:
    """Return what follows: the state that the effect is in, or what is done about it.

    ``stopped`` says that the turn was aborted meanwhile. Budgets and the key's lifetime are taken to last.
    """
    if known is Known.APPLIED:
        return State.COMMITTED
    if known is Known.NOT_APPLIED:
        return State.FAILED
    row = Row(
        effect="",
        state=State.UNKNOWN,
        reversible=reversible,
        keyed=keyed,
        can_look_up=can_look_up,
        on_unknown=on_unknown,
        sends_left=0 if known is Known.FINAL else 1,
    )
    # No bound of the row's depends on the instant.
    return resolution(row, fenced=stopped, now=datetime(1970, 1, 1, tzinfo=UTC))
