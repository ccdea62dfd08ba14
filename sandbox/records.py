"""CRM's records: a log of versions, of which the last entry is what a record is now."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

Fields = Mapping[str, object]

FOREVER = float("inf")


class Change(StrEnum):
    """How an entry of the log came about."""

    CREATE = "create"
    UPDATE = "update"
    REVERT = "revert"
    EDIT = "edit"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a record's log: the record after the change.

    ``created_by`` and ``updated_by`` are the keys of the writes that this content comes
    from; ``key`` is that of the change itself.
    """

    kind: str
    id: str
    version: int
    change: Change
    key: str | None
    at: float
    fields: Fields
    created_by: str | None
    updated_by: str | None

    @property
    def identity(self) -> str:
        return f"{self.kind}/{self.id}"


def current(db: sqlite3.Connection, kind: str, record_id: str, until: float = FOREVER) -> Entry | None:
    """Return the record as it was at ``until``, or None where there was none."""
    row = db.execute(
        "SELECT * FROM record_log WHERE kind = ? AND id = ? AND at <= ? ORDER BY seq DESC LIMIT 1",
        (kind, record_id, until),
    ).fetchone()
    if row is None or row["op"] == Change.DELETE:
        return None
    return _entry(row)


def history(db: sqlite3.Connection, kind: str, record_id: str, until: float = FOREVER) -> list[Entry]:
    """Return the record's log, oldest first, also that of a record which is gone."""
    rows = db.execute(
        "SELECT * FROM record_log WHERE kind = ? AND id = ? AND at <= ? ORDER BY seq",
        (kind, record_id, until),
    )
    return [_entry(row) for row in rows]


def version_of_this_life(db: sqlite3.Connection, record: Entry, version: int) -> Entry | None:
    """Return an earlier version of a record, none from before it was last created."""
    row = db.execute(
        "SELECT * FROM record_log WHERE kind = :kind AND id = :id AND version = :version"
        " AND op != 'delete' AND seq > COALESCE("
        "(SELECT MAX(seq) FROM record_log WHERE kind = :kind AND id = :id AND op = 'delete'), 0)"
        " ORDER BY seq LIMIT 1",
        {"kind": record.kind, "id": record.id, "version": version},
    ).fetchone()
    return None if row is None else _entry(row)


def create(
    db: sqlite3.Connection, kind: str, record_id: str, fields: Fields, *, key: str | None, now: float
) -> Entry:
    """Make a record, which must not be there."""
    version = _next_version(db, kind, record_id)
    return _append(db, Entry(kind, record_id, version, Change.CREATE, key, now, fields, key, key))


def update(
    db: sqlite3.Connection,
    record: Entry,
    fields: Fields,
    *,
    key: str | None,
    now: float,
    change: Change = Change.UPDATE,
) -> Entry:
    """Merge ``fields`` into a record, as a new version."""
    version = _next_version(db, record.kind, record.id)
    merged = {**record.fields, **fields}
    return _append(
        db,
        Entry(record.kind, record.id, version, change, key, now, merged, record.created_by, key),
    )


def attach(db: sqlite3.Connection, record: Entry, attached: str, *, now: float) -> Entry:
    """Let somebody else attach something to a record, as a new version."""
    earlier = record.fields.get("attachments")
    attachments = [*cast("list[object]", earlier), attached] if isinstance(earlier, list) else [attached]
    return update(db, record, {"attachments": attachments}, key=None, now=now, change=Change.EDIT)


def revert(db: sqlite3.Connection, record: Entry, to: Entry, *, key: str | None, now: float) -> Entry:
    """Put content and version of a record back to what they were; the version after stays used."""
    return _append(
        db,
        Entry(
            record.kind,
            record.id,
            to.version,
            Change.REVERT,
            key,
            now,
            to.fields,
            to.created_by,
            to.updated_by,
        ),
    )


def delete(db: sqlite3.Connection, record: Entry, *, key: str | None, now: float) -> None:
    """Take a record away; its log stays."""
    _append(
        db,
        Entry(
            record.kind,
            record.id,
            record.version,
            Change.DELETE,
            key,
            now,
            {},
            record.created_by,
            record.updated_by,
        ),
    )


def search(db: sqlite3.Connection, kind: str | None, text: str, until: float) -> list[Entry]:
    """Return the records whose id or field values contain ``text``, whatever its case."""
    rows = db.execute(
        "SELECT * FROM record_log WHERE op != 'delete' AND seq IN"
        " (SELECT MAX(seq) FROM record_log WHERE at <= ? AND (? IS NULL OR kind = ?) GROUP BY kind, id)"
        " ORDER BY kind, id",
        (until, kind, kind),
    )
    wanted = text.casefold()
    return [
        entry
        for entry in map(_entry, rows)
        if any(wanted in str(value).casefold() for value in (entry.id, *entry.fields.values()))
    ]


def seed(db: sqlite3.Connection, now: float) -> None:
    """Make the customers that are there from the start."""
    for number, name in enumerate(("Ada Example", "Benno Example", "Chiara Example"), start=1):
        fields = {"name": name, "email": f"{name.split()[0].lower()}@example.com"}
        create(db, "customer", f"cus_{number}", fields, key=None, now=now)


def _next_version(db: sqlite3.Connection, kind: str, record_id: str) -> int:
    (highest,) = db.execute(
        "SELECT COALESCE(MAX(version), 0) FROM record_log WHERE kind = ? AND id = ?", (kind, record_id)
    ).fetchone()
    return int(highest) + 1


def _append(db: sqlite3.Connection, entry: Entry) -> Entry:
    db.execute(
        "INSERT INTO record_log (kind, id, version, op, key, at, fields, created_by, updated_by)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            entry.kind,
            entry.id,
            entry.version,
            entry.change,
            entry.key,
            entry.at,
            json.dumps(entry.fields),
            entry.created_by,
            entry.updated_by,
        ),
    )
    return entry


def _entry(row: sqlite3.Row) -> Entry:
    return Entry(
        kind=row["kind"],
        id=row["id"],
        version=row["version"],
        change=Change(row["op"]),
        key=row["key"],
        at=row["at"],
        fields=json.loads(row["fields"]),
        created_by=row["created_by"],
        updated_by=row["updated_by"],
    )
