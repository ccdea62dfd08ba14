"""Handing an effect over: its bounded wait is over, and somebody follows it from here on."""

from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from turnsaga.ledger import Event, State
from turnsaga.models import EffectRef
from turnsaga.store._rows import EffectRow
from turnsaga.store._unit import TurnUnit

__all__ = ["CANT_BE_ASKED", "hand_over", "hand_over_row"]

CANT_BE_ASKED: Final = "it may have been done; the system can't be asked, so a person must look"


def hand_over(connection: Connection, ref: EffectRef, reason: str, *, now: datetime) -> EffectRow:
    """Show an effect in doubt as open, to be followed by somebody; a decided one is left as it is."""
    unit, row = TurnUnit.hold_effect(connection, ref, now)
    return hand_over_row(unit, row, reason)


def hand_over_row(unit: TurnUnit, row: EffectRow, reason: str) -> EffectRow:
    """As ``hand_over``, in a transaction that is under way."""
    if row.state is State.COMMITTING:
        row = unit.move(row, Event.COMMIT_LOST, quiet=True, token=row.token + 1, error=reason)
    if row.state in {State.UNKNOWN, State.ACCEPTED} and not row.owned:
        return unit.move(row, Event.HANDED_OVER, token=row.token + 1, owned=True, error=reason)
    return row
