"""Which effects are compared, oldest first, a page at a time."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, or_, select, true

from turnsaga.cli._questions import Owners
from turnsaga.cli._reading import LedgerReader
from turnsaga.models import EffectRef
from turnsaga.store import schema

__all__ = ["Scope", "effect_names", "pages"]

_PAGE: Final = 200
_Place = tuple[datetime, str, str]


@dataclass(frozen=True)
class Scope:
    """Whose effects, of which turn, changed since when, and at most how many; None is no bound."""

    owners: Owners = field(default_factory=Owners)
    turn: str | None = None
    since: datetime | None = None
    limit: int | None = None


def effect_names(
    connection: Connection, scope: Scope, *, after: _Place | None, limit: int
) -> tuple[tuple[_Place, EffectRef], ...]:
    """Return effects in the order in which they were prepared, those after a place."""
    table = schema.effects
    place = (table.c.prepared_at, table.c.tenant, table.c.effect)
    owners = scope.owners
    found = connection.execute(
        select(*place, table.c.turn)
        .where(
            table.c.tenant == owners.tenant if owners.tenant is not None else true(),
            table.c.user == owners.user if owners.user is not None else true(),
            table.c.turn == scope.turn if scope.turn is not None else true(),
            table.c.at >= scope.since if scope.since is not None else true(),
            _later(place, after) if after is not None else true(),
        )
        .order_by(*place)
        .limit(limit)
    )
    return tuple(
        (
            (row.prepared_at, row.tenant, row.effect),
            EffectRef(tenant=row.tenant, turn=row.turn, effect=row.effect),
        )
        for row in found
    )


async def pages(reader: LedgerReader, scope: Scope) -> AsyncIterator[tuple[EffectRef, ...]]:
    """Yield the effects of a scope, at most one more than its limit: that one says that there are more."""
    after: _Place | None = None
    left = None if scope.limit is None else scope.limit + 1
    while left is None or left > 0:
        size = _PAGE if left is None else min(_PAGE, left)
        found = await reader.ask(effect_names, scope, after=after, limit=size)
        if found:
            yield tuple(ref for _, ref in found)
        if len(found) < size:
            return
        after = found[-1][0]
        left = None if left is None else left - len(found)


def _later(
    place: tuple[ColumnElement[Any], ColumnElement[Any], ColumnElement[Any]], after: _Place
) -> ColumnElement[bool]:
    instant, tenant, effect = place
    return or_(
        instant > after[0],
        and_(instant == after[0], or_(tenant > after[1], and_(tenant == after[1], effect > after[2]))),
    )
