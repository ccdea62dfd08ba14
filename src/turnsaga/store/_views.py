"""What is read for people: turns, effects and events, always within one owner's things."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, Connection, bindparam, select, update

from turnsaga.errors import NotFound
from turnsaga.ledger import OPEN_TURN
from turnsaga.models import EffectRef, EffectView, Principal, TurnEvent, TurnView
from turnsaga.store import schema
from turnsaga.store._payloads import load_object
from turnsaga.store._prepared import Prepared
from turnsaga.store._rows import EffectRow, TurnRow, effect_row, settlement, turn_row, view
from turnsaga.store._statements import EFFECT, EFFECTS_OF_TURN, OCCUPANT, matches

__all__ = [
    "EventPage",
    "acknowledge",
    "active_turn",
    "conversation_effects",
    "effect_by_key",
    "effect_view",
    "event_page",
    "latest_turn",
    "load_effect",
    "outstanding",
    "turn_view",
]


_turns, _events = schema.turns, schema.turn_events
_OWN_TURN: Final = Prepared(select(_turns).where(matches(_turns.c.tenant, _turns.c.turn, _turns.c.user)))
_PAGE: Final = Prepared(
    select(_events)
    .where(matches(_events.c.tenant, _events.c.turn) & (_events.c.number > bindparam("after")))
    .order_by(_events.c.number)
    .limit(bindparam("most"))
)


@dataclass(frozen=True)
class EventPage:
    """Events after a number, and whether the turn's last one is among or before them.

    ``last`` is the number of the turn's last event so far, on whatever page it is.
    """

    events: tuple[TurnEvent, ...]
    ended: bool
    last: int


def turn_view(connection: Connection, who: Principal, turn: str) -> TurnView:
    """Return a turn with its effects and, once it has ended, its settlement.

    Raises:
        NotFound: there is no such turn, or it is somebody else's.
    """
    row = _turn(connection, who, turn)
    found = EFFECTS_OF_TURN.run(connection, {"tenant_is": row.tenant, "turn_is": row.turn})
    rows = [effect_row(one) for one in found]
    return TurnView(
        turn=row.turn,
        conversation=row.conversation,
        state=row.state,
        reason=row.reason,
        effects=tuple(view(one) for one in rows),
        settlement=settlement(row, rows),
    )


def active_turn(connection: Connection, who: Principal, conversation: str) -> str | None:
    """Return the turn of a conversation that hasn't ended, if there is one."""
    mine = {"tenant_is": who.tenant, "user_is": who.user, "conversation_is": conversation}
    turn: str | None = OCCUPANT.run(connection, mine).scalar_one_or_none()
    return turn


def latest_turn(connection: Connection, who: Principal, conversation: str) -> str | None:
    """Return the newest turn of a conversation, ended or not; None if it has none."""
    table = schema.turns
    return connection.execute(
        select(table.c.turn)
        .where(
            (table.c.tenant == who.tenant)
            & (table.c.user == who.user)
            & (table.c.conversation == conversation)
        )
        .order_by(table.c.position.desc())
        .limit(1)
    ).scalar_one_or_none()


def event_page(connection: Connection, who: Principal, turn: str, *, after: int, limit: int) -> EventPage:
    """Return at most ``limit`` events of a turn whose numbers are above ``after``, in their order.

    Raises:
        NotFound: there is no such turn, or it is somebody else's.
    """
    row = _turn(connection, who, turn)
    found = _PAGE.run(
        connection, {"tenant_is": row.tenant, "turn_is": row.turn, "after": after, "most": limit}
    )
    events = tuple(
        TurnEvent(
            turn=event.turn, number=event.number, kind=event.kind, data=load_object(event.data), at=event.at
        )
        for event in found
    )
    read = events[-1].number if events else after
    last = row.next_event - 1
    return EventPage(events, ended=row.state not in OPEN_TURN and read >= last, last=last)


def effect_view(connection: Connection, who: Principal, effect: str) -> EffectView:
    """Return one effect of this owner.

    Raises:
        NotFound: there is no such effect, or it is somebody else's.
    """
    return view(_effect(connection, who, schema.effects.c.effect == effect, effect))


def effect_by_key(connection: Connection, who: Principal, key: str) -> EffectView:
    """Return the effect of this owner that a key stands for.

    Raises:
        NotFound: there is no such effect, or it is somebody else's.
    """
    return view(_effect(connection, who, schema.effects.c.key == key, key))


def conversation_effects(connection: Connection, who: Principal, conversation: str) -> tuple[EffectView, ...]:
    """Return the effects of a conversation in the order in which they were prepared."""
    return _listed(connection, who, schema.effects.c.conversation == conversation)


def outstanding(connection: Connection, who: Principal, *, only: bool) -> tuple[EffectView, ...]:
    """Return the account's effects; with ``only``, those that its user has yet to be told of."""
    table = schema.effects
    condition: ColumnElement[bool] = table.c.tenant == who.tenant
    if only:
        condition = table.c.acknowledged_at.is_(None) & schema.one_of(table.c.state, schema.OUTSTANDING)
    return _listed(connection, who, condition)


def acknowledge(connection: Connection, who: Principal, effect: str, *, now: datetime) -> EffectView:
    """Note that the user has seen an effect that stands; a second time changes nothing.

    Raises:
        NotFound: there is no such effect, or it is somebody else's.
    """
    row = _effect(connection, who, schema.effects.c.effect == effect, effect)
    table = schema.effects
    connection.execute(
        update(table)
        .where(
            (table.c.tenant == row.tenant) & (table.c.effect == effect) & table.c.acknowledged_at.is_(None)
        )
        .values(acknowledged_at=now)
    )
    return view(row)


def load_effect(connection: Connection, ref: EffectRef) -> EffectRow:
    """Return an effect's row, for the worker that carries it out.

    Raises:
        NotFound: there is no such effect.
    """
    row = EFFECT.run(
        connection, {"tenant_is": ref.tenant, "turn_is": ref.turn, "effect_is": ref.effect}
    ).one_or_none()
    if row is None:
        raise NotFound("effect", ref.effect)
    return effect_row(row)


def _turn(connection: Connection, who: Principal, turn: str) -> TurnRow:
    row = _OWN_TURN.run(
        connection, {"tenant_is": who.tenant, "turn_is": turn, "user_is": who.user}
    ).one_or_none()
    if row is None:
        raise NotFound("turn", turn)
    return turn_row(row)


def _effect(connection: Connection, who: Principal, condition: ColumnElement[bool], name: str) -> EffectRow:
    table = schema.effects
    row = connection.execute(
        select(table).where((table.c.tenant == who.tenant) & (table.c.user == who.user) & condition)
    ).one_or_none()
    if row is None:
        raise NotFound("effect", name)
    return effect_row(row)


def _listed(connection: Connection, who: Principal, condition: ColumnElement[bool]) -> tuple[EffectView, ...]:
    table = schema.effects
    rows = connection.execute(
        select(table)
        .where((table.c.tenant == who.tenant) & (table.c.user == who.user) & condition)
        .order_by(table.c.prepared_at, table.c.seq)
    )
    return tuple(view(effect_row(row)) for row in rows)
