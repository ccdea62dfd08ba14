"""A call to a vendor, what it does there, and what the vendor answers."""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

JSON_HEADER = ("content-type", "application/json")


class Op(StrEnum):
    """What a call is for."""

    APPLY = "apply"
    UNDO = "undo"
    LOOKUP = "lookup"


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back: an HTTP response, or an SMTP reply of code and text."""

    status: int
    body: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def with_headers(self, *headers: tuple[str, str]) -> "Answer":
        return replace(self, headers=(*self.headers, *headers))


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A call as it stands in the log; ``path`` is relative to its system."""

    seq: int
    system: str
    method: str
    path: str
    op: Op
    identity: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Moment:
    """What an operation runs in: one transaction, which commits before any answer is sent.

    A lookup that can lag shows nothing that was applied after ``seen_until``.
    Both instants are seconds since the epoch.
    """

    db: sqlite3.Connection
    call: LoggedCall
    now: float
    seen_until: float


@dataclass(frozen=True, slots=True)
class KeyRules:
    """How a vendor that honours idempotency keys treats this call's key."""

    fingerprint: str
    in_use: Answer
    mismatch: Answer


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, read from the wire and not yet run.

    ``identity_of`` finds the identity in the database where the request alone doesn't
    tell it. ``perform`` may raise ``Refused``, before it has written anything.
    ``failure`` shapes the answer of a call that a knob lets fail.
    """

    op: Op
    method: str
    path: str
    perform: Callable[[Moment], Answer]
    failure: Callable[[int], Answer]
    key: str | None = None
    identity: str | None = None
    identity_of: Callable[[sqlite3.Connection], str | None] | None = None
    key_rules: KeyRules | None = None


def json_answer(status: int, content: Mapping[str, object] | Sequence[object]) -> Answer:
    """Return ``content`` as a JSON answer."""
    return Answer(status, json.dumps(content, separators=(",", ":")), (JSON_HEADER,))
