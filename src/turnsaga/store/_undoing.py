"""Who may send an undo, and when: one claim at a time, and never a second one that could double it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, select

from turnsaga.ledger import IN_DOUBT, UNDOABLE, Event, State
from turnsaga.models import EffectRef, TurnRef
from turnsaga.settle import OnUnknown
from turnsaga.store import schema
from turnsaga.store._asking import ask_effect, effect_of
from turnsaga.store._prepared import Prepared, Rows
from turnsaga.store._rows import EffectRow
from turnsaga.store._statements import matches
from turnsaga.store._unit import Numbers, Taking, TurnUnit

__all__ = ["UndoClaim", "UndoVerdict", "claim_undo", "claimed_undo", "deny_undo", "keep_undo_open"]


class UndoVerdict(StrEnum):
    """What an attempt may do. ``ASK``: an earlier undo may have been done; read it back first."""

    SEND = "send"
    ASK = "ask"
    STORED = "stored"


@dataclass(frozen=True)
class UndoClaim:
    """The ledger's answer to an attempt that wants to undo."""

    row: EffectRow
    verdict: UndoVerdict

    @property
    def sends(self) -> bool:
        """True if the undo may be sent."""
        return self.verdict is UndoVerdict.SEND


_effects = schema.effects
# An effect whose tool undoes what is unknown is in doubt as well, and holds up nobody: it comes first.
_IN_DOUBT: Final = Prepared(
    select(_effects.c.effect)
    .where(
        matches(_effects.c.tenant, _effects.c.turn)
        & schema.one_of(_effects.c.state, sorted(IN_DOUBT))
        & _effects.c.owned.is_(False)
        & (_effects.c.on_unknown != OnUnknown.COMPENSATE.value)
    )
    .limit(1)
)


def claim_undo(connection: Connection, ref: EffectRef, *, now: datetime) -> UndoClaim:
    """Claim an effect to undo it.

    An undo that was claimed before is sent again where the downstream system honours its key. An unkeyed
    one may have been done, and a second refund is a second refund: it is read back first, where its tool
    can, and is a person's otherwise.
    """
    taking = Taking(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now, Numbers(events=1))
    found = ask_effect(connection, ref)
    in_doubt = _IN_DOUBT.ask(connection, {"tenant_is": ref.tenant, "turn_is": ref.turn})
    unit, row = taking.held(), effect_of(found, ref.effect)
    if not _may_be_undone(unit, row, in_doubt):
        return UndoClaim(row, UndoVerdict.STORED)
    if row.state is not State.COMPENSATING:
        return UndoClaim(claimed_undo(unit, row), UndoVerdict.SEND)
    unproved = row.undo_sends > row.undo_refusals
    spent = row.undo_sends >= row.max_undo_sends
    if unproved and row.can_check_undone and (spent or not row.undo_keyed):
        return UndoClaim(unit.move(row, Event.UNDO_CLAIMED, quiet=True, token=row.token + 1), UndoVerdict.ASK)
    if spent or (unproved and not row.undo_keyed):
        why = f"its undo was tried {row.undo_sends} times without success"
        if unproved and not row.undo_keyed:
            why = "its undo may have been done, and it can't be sent twice"
        error = f"{why}: {row.error}" if row.error else why
        failed = unit.move(row, Event.UNDO_FAILED, token=row.token + 1, owned=True, error=error)
        return UndoClaim(failed, UndoVerdict.STORED)
    return UndoClaim(claimed_undo(unit, row), UndoVerdict.SEND)


def _may_be_undone(unit: TurnUnit, row: EffectRow, in_doubt: Rows) -> bool:
    if row.undone_unasked:
        # What its tool undoes without asking needs no fence: the turn goes on without it.
        if not unit.turn.fenced:
            return True
    elif not unit.turn.fenced or row.state not in UNDOABLE:
        return False
    return in_doubt.one_or_none() is None


def claimed_undo(unit: TurnUnit, row: EffectRow) -> EffectRow:
    """Claim the row for one undo to be sent."""
    if row.state is State.COMMITTING:
        row = unit.move(row, Event.COMMIT_LOST, quiet=True, token=row.token + 1)
    return unit.move(
        row,
        Event.UNDO_CLAIMED,
        quiet=row.state is State.COMPENSATING,
        token=row.token + 1,
        owned=False,
        undo_sends=row.undo_sends + 1,
        undo_send_by=unit.now + timedelta(milliseconds=row.send_by_ms),
    )


def deny_undo(
    connection: Connection, ref: EffectRef, token: int, *, asked_at: datetime, now: datetime
) -> EffectRow:
    """Write that the effect was read back and still stands; a stale token writes nothing.

    It proves that no undo was done only if it was asked once none could land any more.
    """
    unit, row = TurnUnit.hold_effect(connection, ref, now, Numbers(events=1))
    if row.state is not State.COMPENSATING or row.token != token:
        return row
    if row.undo_wire_until is not None and asked_at < row.undo_wire_until:
        return row
    return unit.amend(row, token=row.token + 1, undo_refusals=row.undo_sends)


def keep_undo_open(connection: Connection, ref: EffectRef, until: datetime, *, now: datetime) -> None:
    """Have it known that an undo's request can still leave until then."""
    unit, row = TurnUnit.hold_effect(connection, ref, now, Numbers(events=1))
    if row.state is State.COMPENSATING and row.undo_send_by is not None and row.undo_send_by < until:
        unit.amend(row, undo_send_by=until)
