"""What the command asks a ledger, across all owners: it is the operator's, who has the database anyway."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Table,
    and_,
    func,
    literal_column,
    select,
    text,
    true,
)

from turnsaga.errors import NotFound
from turnsaga.ledger import OPEN_TURN, State, TurnState
from turnsaga.models import Principal
from turnsaga.store import EngineName, schema
from turnsaga.tools import ToolCard

__all__ = [
    "EffectLine",
    "Owners",
    "TurnLine",
    "effects",
    "engine_name",
    "newest_instant",
    "open_effects_by_tool",
    "owner_of_effect",
    "owner_of_turn",
    "server",
    "server_time",
    "tool_cards",
    "turns",
]

_OPEN: Final = (
    State.PREPARED,
    State.COMMITTING,
    State.ACCEPTED,
    State.UNKNOWN,
    State.COMPENSATING,
)


@dataclass(frozen=True)
class Owners:
    """Whose things are asked for: everybody's, a tenant's or a user's."""

    tenant: str | None = None
    user: str | None = None


class TurnLine(BaseModel):
    """One turn in a list. What its user wrote isn't in it."""

    model_config = ConfigDict(frozen=True)

    turn: str
    tenant: str
    user: str
    conversation: str
    state: TurnState
    effects: int
    created_at: datetime
    ended_at: datetime | None


class EffectLine(BaseModel):
    """One effect in a list."""

    model_config = ConfigDict(frozen=True)

    effect: str
    turn: str
    tenant: str
    user: str
    tool: str
    identity: str | None
    title: str
    state: State
    needs_attention: bool
    order: int | None
    at: datetime


def turns(
    connection: Connection, owners: Owners, *, states: Sequence[TurnState], limit: int
) -> tuple[TurnLine, ...]:
    """Return turns, the newest first; without ``states`` those in any."""
    table, effect = schema.turns, schema.effects
    count = (
        select(func.count())
        .where((effect.c.tenant == table.c.tenant) & (effect.c.turn == table.c.turn))
        .scalar_subquery()
    )
    found = connection.execute(
        select(table, count.label("effects"))
        .where(_owned(table, owners), table.c.state.in_(states) if states else true())
        .order_by(table.c.created_at.desc(), table.c.turn)
        .limit(limit)
    )
    return tuple(TurnLine.model_validate(dict(row._mapping)) for row in found)  # noqa: SLF001  # SQLAlchemy's public name


def effects(
    connection: Connection,
    owners: Owners,
    *,
    states: Sequence[State],
    turn: str | None,
    attention: bool,
    limit: int,
) -> tuple[EffectLine, ...]:
    """Return effects, the latest changed first.

    ``attention`` leaves those that wait for a person, and those that have waited longest come first.
    """
    table = schema.effects
    waits = literal_column(schema.NEEDS_ATTENTION, Boolean)
    latest_first = (table.c.at.desc(), table.c.effect)
    found = connection.execute(
        select(table, table.c.commit_order.label("order"), waits.label("needs_attention"))
        .where(
            _owned(table, owners),
            table.c.state.in_(states) if states else true(),
            table.c.turn == turn if turn is not None else true(),
            waits if attention else true(),
        )
        .order_by(*((table.c.at, table.c.effect) if attention else latest_first))
        .limit(limit)
    )
    return tuple(EffectLine.model_validate(dict(row._mapping)) for row in found)  # noqa: SLF001  # as above


def owner_of_turn(connection: Connection, turn: str, owners: Owners) -> Principal:
    """Return whose turn that is.

    Raises:
        NotFound: there is none of that name among these owners.
    """
    table = schema.turns
    row = connection.execute(
        select(table.c.tenant, table.c.user).where(table.c.turn == turn, _owned(table, owners))
    ).one_or_none()
    if row is None:
        raise NotFound("turn", turn)
    return Principal(tenant=row.tenant, user=row.user, role="operator")


def owner_of_effect(connection: Connection, effect: str, owners: Owners) -> Principal:
    """Return whose effect that is.

    Raises:
        NotFound: there is none of that name among these owners.
    """
    table = schema.effects
    row = connection.execute(
        select(table.c.tenant, table.c.user).where(table.c.effect == effect, _owned(table, owners))
    ).one_or_none()
    if row is None:
        raise NotFound("effect", effect)
    return Principal(tenant=row.tenant, user=row.user, role="operator")


def engine_name(connection: Connection) -> EngineName | None:
    """Return the Temporal that the ledger belongs to; None before the first sweep."""
    row = connection.execute(select(schema.engine)).one_or_none()
    return None if row is None else EngineName(row.cluster, row.namespace)


def open_effects_by_tool(connection: Connection) -> dict[str, int]:
    """Return how many effects of each tool somebody may still have to commit, look up or undo."""
    effect, turn = schema.effects, schema.turns
    found = connection.execute(
        select(effect.c.tool, func.count())
        .join(turn, (turn.c.tenant == effect.c.tenant) & (turn.c.turn == effect.c.turn))
        .where(
            effect.c.state.in_(_OPEN)
            # What a turn has committed is undone if it is stopped, or has landed after its end.
            | ((effect.c.state == State.COMMITTED) & (turn.c.state.in_(OPEN_TURN) | turn.c.follow))
        )
        .group_by(effect.c.tool)
    )
    return {tool: int(count) for tool, count in found}


def tool_cards(connection: Connection) -> dict[str, ToolCard]:
    """Return the tools that the worker which started last has, by name."""
    rows = connection.execute(select(schema.tools.c.name, schema.tools.c.card))
    return {row.name: ToolCard.model_validate_json(row.card) for row in rows}


def server(connection: Connection) -> tuple[int, ...]:
    """Return the version of the database's server, or of the library that SQLite is."""
    version = connection.dialect.server_version_info or ()
    return tuple(part for part in version if isinstance(part, int))


def server_time(connection: Connection) -> datetime | None:
    """Return the database server's own time; None from SQLite, which has no server."""
    if connection.dialect.name != "postgresql":
        return None
    now: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now


def newest_instant(connection: Connection) -> datetime | None:
    """Return the latest instant that a worker or web tier has written by its own clock, as far as is cheap.

    That is the start of a worker and of each open turn: those are few, and found by an index.
    """
    turn, tool = schema.turns, schema.tools
    found: list[datetime | None] = [
        connection.execute(select(func.max(tool.c.at))).scalar_one(),
        connection.execute(
            select(func.max(turn.c.created_at)).where(turn.c.state.in_(OPEN_TURN))
        ).scalar_one(),
    ]
    return max((instant for instant in found if instant is not None), default=None)


def _owned(table: Table, owners: Owners) -> ColumnElement[bool]:
    return and_(
        true(),
        *((table.c.tenant == owners.tenant,) if owners.tenant is not None else ()),
        *((table.c.user == owners.user,) if owners.user is not None else ()),
    )
