"""The log of what really happened: every call that arrived, every effect that was applied."""

import sqlite3
import time
from datetime import UTC, datetime

from sandbox.calls import LoggedCall, Moment, Operation


def instant(at: float) -> str:
    """Return seconds since the epoch as ISO 8601 in UTC, of fixed width so that it sorts."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def log_call(db: sqlite3.Connection, system: str, operation: Operation) -> LoggedCall:
    """Log a call that has arrived and isn't answered yet."""
    identity = operation.identity
    if identity is None and operation.identity_of is not None:
        identity = operation.identity_of(db)
    cursor = db.execute(
        "INSERT INTO calls (system, method, path, op, identity, key, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (system, operation.method, operation.path, operation.op, identity, operation.key, time.time()),
    )
    return LoggedCall(
        seq=cursor.lastrowid or 0,
        system=system,
        method=operation.method,
        path=operation.path,
        op=operation.op,
        identity=identity,
        key=operation.key,
    )


def log_answer(db: sqlite3.Connection, call: LoggedCall, status: int) -> None:
    """Log that the answer was sent."""
    db.execute("UPDATE calls SET answered = 1, status = ? WHERE seq = ?", (status, call.seq))


def log_change(moment: Moment) -> None:
    """Log when a call took place at the vendor, be it an effect or an undo."""
    db, call = moment.db, moment.call
    db.execute("UPDATE calls SET applied_at = ? WHERE seq = ?", (moment.now, call.seq))


def log_effect(moment: Moment, identity: str, ref: str) -> None:
    """Log that the call was applied.

    ``ref`` is what an undo names beside the key: the charge, the version of the record.
    """
    db, call = moment.db, moment.call
    db.execute(
        "INSERT INTO effects (system, identity, key, ref, at) VALUES (?, ?, ?, ?, ?)",
        (call.system, identity, call.key, ref, moment.now),
    )
    db.execute("UPDATE calls SET identity = ? WHERE seq = ?", (identity, call.seq))
    log_change(moment)


def undo_ref(db: sqlite3.Connection, system: str, ref: str) -> None:
    """Mark what has this ``ref`` as undone."""
    db.execute(
        "UPDATE effects SET state = 'undone' WHERE system = ? AND ref = ? AND state = 'standing'",
        (system, ref),
    )


def undo_key(db: sqlite3.Connection, system: str, identity: str, key: str, *, after: int = 0) -> None:
    """Mark what ``key`` did to ``identity`` after version ``after`` as undone."""
    db.execute(
        "UPDATE effects SET state = 'undone' WHERE system = ? AND identity = ? AND key = ?"
        " AND state = 'standing' AND CAST(ref AS INTEGER) > ?",
        (system, identity, key, after),
    )


def wipe(db: sqlite3.Connection, system: str, identity: str, *, after: int | None = None) -> None:
    """Mark what still stands of ``identity`` as gone by another hand than its own undo."""
    db.execute(
        "UPDATE effects SET state = 'wiped' WHERE system = ? AND identity = ? AND state = 'standing'"
        " AND (? IS NULL OR CAST(ref AS INTEGER) > ?)",
        (system, identity, after, after),
    )


def read_truth(db: sqlite3.Connection) -> dict[str, object]:
    """Return all effects, by identity in order of their first, and all calls in order of arrival."""
    return {"effects": _effects(db), "calls": _calls(db)}


def _effects(db: sqlite3.Connection) -> list[dict[str, object]]:
    keys: dict[tuple[str, str], list[str]] = {}
    for row in db.execute("SELECT system, identity, key FROM effects WHERE key IS NOT NULL ORDER BY seq"):
        keys.setdefault((row["system"], row["identity"]), []).append(row["key"])
    rows = db.execute(
        "SELECT system, identity, SUM(state = 'standing') AS standing, COUNT(*) AS applied,"
        " SUM(state = 'undone') AS undone, MAX(at) AS at"
        " FROM effects GROUP BY system, identity ORDER BY MIN(seq)"
    )
    return [
        {
            "system": row["system"],
            "identity": row["identity"],
            "standing": row["standing"],
            "applied": row["applied"],
            "undone": row["undone"],
            "keys": keys.get((row["system"], row["identity"]), []),
            "at": instant(row["at"]),
        }
        for row in rows
    ]


def _calls(db: sqlite3.Connection) -> list[dict[str, object]]:
    return [
        {
            "system": row["system"],
            "method": row["method"],
            "path": row["path"],
            "op": row["op"],
            "identity": row["identity"],
            "key": row["key"],
            "at": instant(row["at"]),
            "applied_at": None if row["applied_at"] is None else instant(row["applied_at"]),
            "answered": bool(row["answered"]),
            "status": row["status"],
        }
        for row in db.execute("SELECT * FROM calls ORDER BY seq")
    ]
