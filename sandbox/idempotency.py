"""Answers that a vendor stored under idempotency keys."""

import json
import sqlite3
from dataclasses import dataclass

from sandbox.calls import Answer, KeyRules, LoggedCall

KEY_LIFETIME_S = 24 * 60 * 60.0


@dataclass(frozen=True, slots=True)
class Stored:
    """What a key answered first, and for which parameters."""

    fingerprint: str
    answer: Answer


def find(db: sqlite3.Connection, call: LoggedCall, *, not_before: float) -> Stored | None:
    """Return what is stored under the call's key, unless it was stored before ``not_before``."""
    row = db.execute(
        "SELECT * FROM idempotency_keys WHERE system = ? AND key = ? AND at > ?",
        (call.system, call.key, not_before),
    ).fetchone()
    if row is None:
        return None
    headers = tuple((str(name), str(value)) for name, value in json.loads(row["headers"]))
    return Stored(row["fingerprint"], Answer(row["status"], row["body"], headers))


def remember(
    db: sqlite3.Connection, call: LoggedCall, rules: KeyRules, answer: Answer, *, now: float
) -> None:
    """Store an answer under the call's key, in place of one whose lifetime is over."""
    db.execute(
        "INSERT OR REPLACE INTO idempotency_keys (system, key, fingerprint, at, status, body, headers)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            call.system,
            call.key,
            rules.fingerprint,
            now,
            answer.status,
            answer.body,
            json.dumps(answer.headers),
        ),
    )
