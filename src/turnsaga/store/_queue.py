"""Turns that wait for the conversation's earlier ones. One at a time runs; they begin in their order."""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, func, select, update

from turnsaga.ledger import TurnEventName, TurnState
from turnsaga.models import TurnRef
from turnsaga.store import schema
from turnsaga.store._prepared import Prepared, Rows
from turnsaga.store._statements import OCCUPANT, TURN, matches
from turnsaga.store._unit import TurnUnit

__all__ = ["MAX_QUEUED", "ask_first_queued", "ask_next", "begin_next", "enter", "queue_length"]

MAX_QUEUED: Final = 20
"""Turns that may wait in one conversation: more of them are a client that went wild."""

_turns, _conversations = schema.turns, schema.conversations
_OF_CONVERSATION: Final = matches(_turns.c.tenant, _turns.c.user, _turns.c.conversation)
_IS_QUEUED: Final = schema.one_of(_turns.c.state, schema.QUEUED)
_FIRST: Final = Prepared(
    select(_turns.c.turn).where(_OF_CONVERSATION & _IS_QUEUED).order_by(_turns.c.position).limit(1)
)
_LENGTH: Final = Prepared(select(func.count()).select_from(_turns).where(_OF_CONVERSATION & _IS_QUEUED))
_LOCK: Final = Prepared(
    update(_conversations)
    .where(matches(_conversations.c.tenant, _conversations.c.user, _conversations.c.conversation))
    .values(turns=_conversations.c.turns)
)


def ask_first_queued(connection: Connection, conversation: dict[str, Any]) -> Rows:
    """Ask for the turn that begins next in a conversation, if one waits."""
    return _FIRST.ask(connection, conversation)


def _first_queued(connection: Connection, conversation: dict[str, Any]) -> str | None:
    turn: str | None = ask_first_queued(connection, conversation).scalar_one_or_none()
    return turn


def queue_length(connection: Connection, conversation: dict[str, Any]) -> int:
    """Return how many turns of a conversation wait."""
    length: int = _LENGTH.run(connection, conversation).scalar_one()
    return length


def ask_next(unit: TurnUnit) -> Rows:
    """Ask whether a turn waits for the one that is held here, for ``begin_next``."""
    return ask_first_queued(unit.connection, _conversation_of(unit))


def begin_next(unit: TurnUnit, asked: Rows) -> str | None:
    """Let the conversation's next turn begin, since the one that is held here has ended, and name it."""
    if asked.scalar_one_or_none() is None:
        return None
    conversation = _conversation_of(unit)
    # A start, a turn that asks whether it may begin, and this one: one after the other.
    _LOCK.run(unit.connection, conversation)
    turn = _first_queued(unit.connection, conversation)
    if turn is None:
        return None
    waiting = TurnUnit.hold(unit.connection, TurnRef(tenant=unit.turn.tenant, turn=turn), unit.now)
    return turn if _begun(waiting) else None


def enter(connection: Connection, ref: TurnRef, *, now: datetime) -> TurnState:
    """Let a queued turn begin if its conversation is free and it is next; return where it stands.

    Whoever ends a turn lets the next one begin. This is for a turn that was queued in that very moment.
    """
    row = TURN.run(connection, {"tenant_is": ref.tenant, "turn_is": ref.turn}).one()
    conversation = {"tenant_is": row.tenant, "user_is": row.user, "conversation_is": row.conversation}
    _LOCK.run(connection, conversation)
    unit = TurnUnit.hold(connection, ref, now)
    if unit.turn.state is TurnState.QUEUED:
        occupied = OCCUPANT.run(connection, conversation).scalar_one_or_none() is not None
        if not occupied and _first_queued(connection, conversation) == ref.turn:
            _begun(unit)
    return unit.turn.state


def _begun(unit: TurnUnit) -> bool:
    if unit.turn.state is not TurnState.QUEUED:
        return False
    unit.advance_turn(TurnEventName.BEGUN)
    unit.emit_started()
    return True


def _conversation_of(unit: TurnUnit) -> dict[str, Any]:
    turn = unit.turn
    return {"tenant_is": turn.tenant, "user_is": turn.user, "conversation_is": turn.conversation}
