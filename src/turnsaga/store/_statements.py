"""Statements that are built once and run again and again.

Building one out of columns costs more than running it: at 30 transactions a turn that was two thirds of
the ledger's processor time. So a statement that belongs to a turn's way is a constant, and only its
parameters change.
"""

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, and_, bindparam, literal_column, select

from turnsaga.store import schema
from turnsaga.store._prepared import Prepared
from turnsaga.store.schema import one_of

__all__ = ["CALL", "EFFECT", "EFFECTS_OF_TURN", "OCCUPANT", "PREPARED_OF_TURN", "TURN", "listed", "matches"]


def matches(*columns: Column[Any]) -> ColumnElement[bool]:
    """Return the condition that each column equals its parameter, whose name is the column's and ``_is``.

    The ending keeps them apart from the values that an update sets.
    """
    return and_(*(column == bindparam(f"{column.name}_is", type_=column.type) for column in columns))


def listed(column: Column[Any], names: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a column is one of the parameters of these names."""
    return column.in_([bindparam(name, type_=column.type) for name in names])


_turns, _effects, _calls = schema.turns, schema.effects, schema.calls

TURN: Final = Prepared(select(_turns).where(matches(_turns.c.tenant, _turns.c.turn)))
"""The turn of ``tenant_is`` and ``turn_is``."""

OCCUPANT: Final = Prepared(
    select(_turns.c.turn).where(
        matches(_turns.c.tenant, _turns.c.user, _turns.c.conversation)
        & one_of(_turns.c.state, schema.OCCUPYING)
    )
)
"""The turn that occupies a conversation."""

EFFECTS_OF_TURN: Final = Prepared(
    select(_effects).where(matches(_effects.c.tenant, _effects.c.turn)).order_by(_effects.c.seq)
)
"""The effects of a turn in the order in which they were prepared."""

PREPARED_OF_TURN: Final = Prepared(
    select(_effects)
    .where(matches(_effects.c.tenant, _effects.c.turn) & (_effects.c.state == literal_column("'prepared'")))
    .order_by(_effects.c.seq)
)
"""The effects of a turn that are prepared and not sent."""

EFFECT: Final = Prepared(
    select(_effects).where(matches(_effects.c.tenant, _effects.c.effect, _effects.c.turn))
)
"""One effect of a turn, by ``effect_is``."""

CALL: Final = matches(_calls.c.tenant, _calls.c.turn, _calls.c.step, _calls.c.index)
"""The condition that names one call of a reply."""
