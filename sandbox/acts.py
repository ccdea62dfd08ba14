"""Somebody else at the vendors: edits, deletes and attachments that no call of ours made."""

import sqlite3
import time
from typing import Annotated, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from sandbox import crm, hook, pay, records, truth

Identity = Annotated[str, Field(min_length=1)]


class _Act(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: Identity


class Edit(_Act):
    """Write fields of a record."""

    system: Literal["crm"]
    op: Literal["edit"]
    fields: Annotated[dict[str, JsonValue], Field(min_length=1)]


class Delete(_Act):
    """Delete a record or the messages of an identity, or refund what is left of an invoice's charges."""

    system: Literal["crm", "pay", "hook"]
    op: Literal["delete"]


class Attach(_Act):
    """Attach ``to`` to a record; where that is a record too, it is linked back."""

    system: Literal["crm"]
    op: Literal["attach"]
    to: Identity = "note"


ACT: TypeAdapter[Edit | Delete | Attach] = TypeAdapter(
    Annotated[Edit | Delete | Attach, Field(discriminator="op")]
)


def play(db: sqlite3.Connection, act: Edit | Delete | Attach) -> bool:
    """Do it, and return whether there was anything to do it to."""
    now = time.time()
    match act:
        case Edit():
            return _edit(db, act, now)
        case Delete(system="pay"):
            return pay.refund_by_hand(db, act.identity, now)
        case Delete(system="hook"):
            return hook.delete_by_hand(db, act.identity)
        case Delete():
            return _delete(db, act, now)
        case Attach():
            return _attach(db, act, now)
    assert_never(act)


def _edit(db: sqlite3.Connection, act: Edit, now: float) -> bool:
    record = _record(db, act.identity)
    if record is None:
        return False
    records.update(db, record, act.fields, key=None, now=now, change=records.Change.EDIT)
    return True


def _delete(db: sqlite3.Connection, act: Delete, now: float) -> bool:
    record = _record(db, act.identity)
    if record is None:
        return False
    records.delete(db, record, key=None, now=now)
    truth.wipe(db, crm.SYSTEM, act.identity)
    return True


def _attach(db: sqlite3.Connection, act: Attach, now: float) -> bool:
    ends = ((act.identity, act.to), (act.to, act.identity))
    linked = [
        records.attach(db, record, attached, now=now)
        for identity, attached in ends
        if (record := _record(db, identity)) is not None
    ]
    return bool(linked)


def _record(db: sqlite3.Connection, identity: str) -> records.Entry | None:
    kind, _, record_id = identity.partition("/")
    return records.current(db, kind, record_id)
