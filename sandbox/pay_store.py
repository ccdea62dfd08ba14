"""Charges and refunds as PAY keeps them."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from sandbox.stripe_wire import Clause, new_id

Document = dict[str, object]

_COLUMN = {
    "amount": "CAST(json_extract(c.document, '$.amount') AS TEXT) = ?",
    "currency": "json_extract(c.document, '$.currency') = lower(?)",
    "customer": "c.customer = ?",
    "status": "json_extract(c.document, '$.status') = ?",
}
_METADATA = "EXISTS (SELECT 1 FROM charge_metadata m WHERE m.charge = c.id AND m.name = ? AND m.value = ?)"


def add_charge(db: sqlite3.Connection, identity: str, charge: Mapping[str, object], now: float) -> None:
    """Keep a new charge under its id."""
    db.execute(
        "INSERT INTO charges (id, identity, customer, applied_at, document) VALUES (?, ?, ?, ?, ?)",
        (charge["id"], identity, charge["customer"], now, json.dumps(charge)),
    )
    metadata = charge["metadata"]
    if isinstance(metadata, Mapping):
        db.executemany(
            "INSERT INTO charge_metadata (charge, name, value) VALUES (?, ?, ?)",
            [(charge["id"], name, value) for name, value in cast("Mapping[str, object]", metadata).items()],
        )


def find_charge(db: sqlite3.Connection, charge_id: str) -> Document | None:
    """Return a charge as it is now."""
    row = db.execute("SELECT document FROM charges WHERE id = ?", (charge_id,)).fetchone()
    return None if row is None else _document(row)


def identity_of(db: sqlite3.Connection, charge_id: str) -> str | None:
    """Return the business identity of a charge."""
    row = db.execute("SELECT identity FROM charges WHERE id = ?", (charge_id,)).fetchone()
    return None if row is None else str(row["identity"])


def identity_of_refund(db: sqlite3.Connection, refund_id: str) -> str | None:
    """Return the business identity of a refund's charge."""
    row = db.execute(
        "SELECT c.identity FROM charges c JOIN refunds r ON r.charge = c.id WHERE r.id = ?", (refund_id,)
    ).fetchone()
    return None if row is None else str(row["identity"])


def charges_of(db: sqlite3.Connection, identity: str) -> list[Document]:
    """Return all charges of a business identity."""
    rows = db.execute("SELECT document FROM charges WHERE identity = ? ORDER BY seq", (identity,))
    return [_document(row) for row in rows]


def search_charges(
    db: sqlite3.Connection,
    clauses: Sequence[Clause],
    *,
    seen_until: float,
    after: str | None,
    limit: int,
) -> list[Document]:
    """Return up to ``limit`` charges for which all clauses hold, newest first.

    ``after`` is the charge that the page before ended with; ``seen_until`` hides the
    charges that were made later.
    """
    conditions = ["c.applied_at <= ?"]
    values: list[str | float | int] = [seen_until]
    for clause in clauses:
        conditions.append(_METADATA if clause.is_metadata else _COLUMN[clause.name])
        values += [clause.name, clause.value] if clause.is_metadata else [clause.value]
    if after is not None:
        conditions.append("c.seq < (SELECT seq FROM charges WHERE id = ?)")
        values.append(after)
    # Joined from the constants above; every value is bound.
    query = "SELECT c.document FROM charges c WHERE " + " AND ".join(conditions)  # noqa: S608
    rows = db.execute(query + " ORDER BY c.seq DESC LIMIT ?", (*values, limit))
    return [_document(row) for row in rows]


def add_refund(
    db: sqlite3.Connection,
    charge: Mapping[str, object],
    *,
    amount: int,
    reason: str | None,
    metadata: Mapping[str, str],
    now: float,
) -> Document:
    """Give back ``amount`` of a charge and return the refund."""
    refund: Document = {
        "id": new_id("re"),
        "object": "refund",
        "amount": amount,
        "balance_transaction": None,
        "charge": charge["id"],
        "created": int(now),
        "currency": charge["currency"],
        "metadata": dict(metadata),
        "payment_intent": None,
        "reason": reason,
        "receipt_number": None,
        "status": "succeeded",
    }
    refunded = unrefunded(charge) == amount
    total = count(charge["amount_refunded"]) + amount
    after = {**charge, "amount_refunded": total, "refunded": refunded}
    db.execute(
        "INSERT INTO refunds (id, charge, applied_at, document) VALUES (?, ?, ?, ?)",
        (refund["id"], charge["id"], now, json.dumps(refund)),
    )
    db.execute("UPDATE charges SET document = ? WHERE id = ?", (json.dumps(after), charge["id"]))
    return refund


def find_refund(db: sqlite3.Connection, refund_id: str) -> Document | None:
    """Return a refund."""
    row = db.execute("SELECT document FROM refunds WHERE id = ?", (refund_id,)).fetchone()
    return None if row is None else _document(row)


def list_refunds(
    db: sqlite3.Connection, charge_id: str | None, *, seen_until: float, after: str | None, limit: int
) -> list[Document]:
    """Return up to ``limit`` refunds, of one charge or all, newest first."""
    rows: Iterable[sqlite3.Row] = db.execute(
        "SELECT document FROM refunds WHERE (:charge IS NULL OR charge = :charge)"
        " AND applied_at <= :seen_until"
        " AND (:after IS NULL OR seq < (SELECT seq FROM refunds WHERE id = :after))"
        " ORDER BY seq DESC LIMIT :limit",
        {"charge": charge_id, "seen_until": seen_until, "after": after, "limit": limit},
    )
    return [_document(row) for row in rows]


def unrefunded(charge: Mapping[str, object]) -> int:
    """Return what of a charge can still be refunded, in minor units."""
    return count(charge["amount"]) - count(charge["amount_refunded"])


def count(value: object) -> int:
    """Return a document's number.

    Raises:
        TypeError: it isn't one.
    """
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no integer")
    return value


def _document(row: sqlite3.Row) -> Document:
    document: Document = json.loads(row["document"])
    return document
