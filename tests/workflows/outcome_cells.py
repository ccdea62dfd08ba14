"""Every answer to a commit, how it is made on the wire of each vendor, and how its turn then ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from turnsaga.ledger import State
from turnsaga.outcomes import Answer

__all__ = ["CALL_S", "CELLS", "IMPOSSIBLE", "TARGETS", "Cell", "Target"]

CALL_S: Final = 2.0
"""Seconds that one call to a vendor may take here."""


@dataclass(frozen=True)
class Target:
    """One tool, and what its system promises about repeats."""

    system: str
    tool: str
    keyed: bool
    can_look_up: bool
    reversible: bool


TARGETS: Final[Mapping[str, Target]] = {
    "pay": Target("pay", "charge_card", keyed=True, can_look_up=True, reversible=True),
    "crm": Target("crm", "create_record", keyed=False, can_look_up=True, reversible=True),
    "hook": Target("hook", "post_message", keyed=False, can_look_up=False, reversible=False),
}

Ahead = Literal["the same, still running", "the same, answered", "another body"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One answer of one system.

    ``knobs`` are the sandbox's; ``says`` is what the wire answers in the vendor's place, ``ahead`` what
    it sends before the commit under the same key. ``applied`` is how often the effect is there at the end.
    """

    answer: Answer
    system: str
    variant: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    nobody_listens: bool = False
    ahead: Ahead | None = None
    says: bytes | None = None
    ends: State
    applied: int

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.system, self.answer, self.variant) if part)

    @property
    def target(self) -> Target:
        return TARGETS[self.system]


_NO_KEYS: Final = "it takes no notice of keys, so no answer of it speaks of another call under the key"
IMPOSSIBLE: Final[Mapping[tuple[Answer, str], str]] = {
    **{
        (answer, system): _NO_KEYS
        for answer in (Answer.IN_PROGRESS, Answer.OTHER_REQUEST, Answer.REPLAYED_ERROR)
        for system in ("crm", "hook")
    },
    (Answer.UNREADABLE, "hook"): "every 2xx is its whole answer, so there is nothing in one to be read",
}
"""Answers that a system can't give, and why."""

_PAGE: Final = b"<html>You are offline</html>"
_UNREADABLE: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % len(_PAGE) + _PAGE
)
_UNEXPECTED: Final = b"HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n"
_LATE: Final = {"latency_ms": int(CALL_S * 1500)}


def _fails(status: int, *, applied: bool) -> dict[str, Any]:
    return {"fail": {"status": status, "times": 1, "applied": applied}}


def _everywhere(
    answer: Answer, ends: Mapping[str, tuple[State, int]], *, variant: str = "", **made: Any
) -> tuple[Cell, ...]:
    return tuple(
        Cell(answer=answer, system=system, variant=variant, ends=state, applied=applied, **made)
        for system, (state, applied) in ends.items()
    )


_DONE: Final = dict.fromkeys(TARGETS, (State.COMMITTED, 1))
_NOT_DONE: Final = dict.fromkeys(TARGETS, (State.FAILED, 0))
# What was applied is found by those that can be asked, and a person's to find out of the one that can't.
_FOUND: Final = {**_DONE, "hook": (State.UNKNOWN, 1)}
# What wasn't is sent again under its key, proved not to be there, or a person's to find out.
_MISSED: Final = {"pay": (State.COMMITTED, 1), "crm": (State.FAILED, 0), "hook": (State.UNKNOWN, 0)}

CELLS: Final[tuple[Cell, ...]] = (
    *_everywhere(Answer.DONE, _DONE),
    *_everywhere(Answer.NEVER_SENT, _NOT_DONE, nobody_listens=True),
    *_everywhere(Answer.CUT_OFF, _FOUND, knobs={"drop_response": 1}),
    *_everywhere(Answer.TIMED_OUT, _FOUND, knobs=_LATE),
    *_everywhere(Answer.REFUSED, _NOT_DONE, knobs=_fails(422, applied=False)),
    *_everywhere(Answer.TOO_MANY, _FOUND, variant="applied", knobs=_fails(429, applied=True)),
    *_everywhere(Answer.TOO_MANY, _MISSED, variant="not_applied", knobs=_fails(429, applied=False)),
    *_everywhere(Answer.SERVER_ERROR, _FOUND, variant="applied", knobs=_fails(503, applied=True)),
    *_everywhere(Answer.SERVER_ERROR, _MISSED, variant="not_applied", knobs=_fails(503, applied=False)),
    *_everywhere(Answer.UNREADABLE, {system: _FOUND[system] for system in ("pay", "crm")}, says=_UNREADABLE),
    *_everywhere(Answer.UNEXPECTED, _FOUND, says=_UNEXPECTED),
    Cell(
        answer=Answer.IN_PROGRESS,
        system="pay",
        ahead="the same, still running",
        knobs={"latency_ms": 600, "conflict_while_running": True},
        ends=State.COMMITTED,
        applied=1,
    ),
    # The other body carries the key in its metadata too: what it did is found, and counts.
    Cell(
        answer=Answer.OTHER_REQUEST,
        system="pay",
        ahead="another body",
        ends=State.COMMITTED,
        applied=1,
    ),
    Cell(
        answer=Answer.REPLAYED_ERROR,
        system="pay",
        variant="applied",
        ahead="the same, answered",
        knobs={**_fails(500, applied=True), "remember_errors": True},
        ends=State.COMMITTED,
        applied=1,
    ),
    Cell(
        answer=Answer.REPLAYED_ERROR,
        system="pay",
        variant="not_applied",
        ahead="the same, answered",
        knobs={**_fails(500, applied=False), "remember_errors": True},
        ends=State.FAILED,
        applied=0,
    ),
)
