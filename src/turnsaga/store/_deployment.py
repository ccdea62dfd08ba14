"""What the ledger knows of its deployment: the tools of its workers, and the engine that it belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, bindparam, delete, exists, insert, literal, select, text

from turnsaga.ledger import OPEN_TURN, State, TurnState
from turnsaga.models import TurnRef, TurnStart
from turnsaga.store import schema
from turnsaga.tools import ToolCard

__all__ = [
    "EngineName",
    "OpenTurn",
    "answered_effects",
    "engine",
    "set_engine",
    "tool_cards",
    "turns_to_sweep",
    "write_tool_cards",
]


@dataclass(frozen=True)
class EngineName:
    """A Temporal cluster and a namespace in it."""

    cluster: str
    namespace: str


@dataclass(frozen=True)
class OpenTurn:
    """A turn that the sweeper has to look at.

    ``begun`` tells that a run of its workflow has been seen; ``fenced`` that it must settle; ``ended``
    that it had settled and something has moved since, or is still being asked about; ``answered`` that a
    person has answered about an effect, and the run may not have heard of it.
    """

    start: TurnStart
    begun: bool
    fenced: bool
    ended: bool
    answered: bool

    @property
    def ref(self) -> TurnRef:
        """Return the turn's name."""
        return self.start.ref


def write_tool_cards(connection: Connection, cards: Mapping[str, ToolCard], *, now: datetime) -> None:
    """Put these cards in place of those that were there."""
    connection.execute(delete(schema.tools))
    for card in cards.values():
        connection.execute(insert(schema.tools).values(name=card.name, card=card.model_dump_json(), at=now))


def tool_cards(connection: Connection) -> dict[str, ToolCard]:
    """Return the cards of the tools that workers have, by name."""
    rows = connection.execute(select(schema.tools.c.name, schema.tools.c.card))
    return {row.name: ToolCard.model_validate_json(row.card) for row in rows}


def engine(connection: Connection) -> EngineName | None:
    """Return the engine that this ledger belongs to; None before the first."""
    row = connection.execute(select(schema.engine)).one_or_none()
    return None if row is None else EngineName(row.cluster, row.namespace)


def set_engine(connection: Connection, name: EngineName, *, now: datetime) -> None:
    """Make this the engine that the ledger belongs to."""
    connection.execute(delete(schema.engine))
    connection.execute(
        insert(schema.engine).values(id=1, cluster=name.cluster, namespace=name.namespace, adopted_at=now)
    )


# A run that isn't told of an answer asks by itself when the time to answer is over. Until then it may wait
# for one that came: also for a no, whose effect is released long ago.
_UNHEARD: Final = (
    schema.one_of(schema.effects.c.state, sorted({State.PREPARED, State.RELEASED}))
    & schema.effects.c.decision.is_not(None)
    & (schema.effects.c.expires_at > bindparam("before", type_=schema.Instant))
)
# Two questions, since no database answers one "or" from two partial indexes for sure.
_ANSWERED: Final = (
    exists()
    .where(
        (schema.effects.c.tenant == schema.turns.c.tenant)
        & (schema.effects.c.turn == schema.turns.c.turn)
        & _UNHEARD
    )
    .label("answered")
)
_OPEN_BEFORE: Final = (
    select(schema.turns, _ANSWERED)
    .where(
        schema.one_of(schema.turns.c.state, schema.OPEN)
        & (schema.turns.c.created_at < bindparam("before", type_=schema.Instant))
    )
    .order_by(schema.turns.c.created_at)
    .limit(bindparam("most"))
)
_FOLLOWED: Final = (
    select(schema.turns, literal(value=False).label("answered"))
    .where(text("follow") & ~schema.one_of(schema.turns.c.state, schema.OPEN))
    .order_by(schema.turns.c.created_at)
    .limit(bindparam("most"))
)


def turns_to_sweep(connection: Connection, *, before: datetime, limit: int) -> tuple[OpenTurn, ...]:
    """Return turns that haven't ended, and ended ones with something left to follow, oldest first."""
    found = [
        *connection.execute(_OPEN_BEFORE, {"before": before, "most": limit}),
        *connection.execute(_FOLLOWED, {"most": limit}),
    ]
    rows = sorted(found, key=lambda row: row.created_at)[:limit]
    return tuple(
        OpenTurn(
            TurnStart(
                tenant=row.tenant,
                turn=row.turn,
                conversation=row.conversation,
                deadline_ms=row.deadline_ms,
                queued=row.state == TurnState.QUEUED,
            ),
            begun=row.begun_at is not None,
            fenced=row.fence is not None,
            ended=TurnState(row.state) not in OPEN_TURN,
            answered=bool(row.answered),
        )
        for row in rows
    )


def answered_effects(connection: Connection, ref: TurnRef, *, before: datetime) -> tuple[str, ...]:
    """Return the effects of a turn that a person has answered about, and whose run may not have heard of it.

    Those whose time to answer was over ``before`` are left out: the run has looked at them by itself.
    """
    effects = schema.effects
    found = connection.execute(
        select(effects.c.effect).where(
            (effects.c.tenant == ref.tenant) & (effects.c.turn == ref.turn) & _UNHEARD
        ),
        {"before": before},
    )
    return tuple(found.scalars())
