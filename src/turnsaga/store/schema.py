"""The ledger's tables. Migrations build them; this module is what queries are written against.

Every key begins with the tenant. Instants are whole microseconds since the epoch, UTC, so that both
databases compare and round them alike. JSON is text in ASCII: whatever a vendor answers (NUL, half a
surrogate pair) can be stored.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    literal_column,
    text,
)

__all__ = [
    "EPOCH",
    "MAX_TEXT",
    "NEEDS_ATTENTION",
    "OCCUPYING",
    "OPEN",
    "OUTSTANDING",
    "QUEUED",
    "SAFE_TEXTS",
    "UNSETTLED",
    "Instant",
    "SafeText",
    "among",
    "calls",
    "conversations",
    "effects",
    "engine",
    "metadata",
    "one_of",
    "resolutions",
    "resources",
    "safe_text",
    "steps",
    "tools",
    "turn_events",
    "turns",
]

MAX_TEXT: Final = 4000
"""Characters that a text for people is cut to."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# The states of partial indexes, in the order of their predicates.
OCCUPYING: Final = ("running", "aborting", "failing")
"""A turn that occupies its conversation."""
QUEUED: Final = ("queued",)
"""A turn that waits until its conversation is free."""
OPEN: Final = (*QUEUED, *OCCUPYING)
"""A turn that hasn't ended."""
UNSETTLED: Final = ("committing", "accepted", "unknown", "compensating", "compensation_failed")
"""An effect that keeps others off its business identity."""
OUTSTANDING: Final = ("standing", "unknown", "accepted", "compensation_failed")
"""An effect that its user is to be told of."""

NEEDS_ATTENTION: Final = (
    "(state = 'compensation_failed' OR (owned AND state IN ('accepted', 'committing', 'unknown')))"
)
"""The predicate of effects that wait for a person, as the partial index over them has it."""


def among(states: Iterable[str]) -> str:
    """Return the predicate of a partial index over rows in these states."""
    return f"state IN ({', '.join(repr(str(state)) for state in states)})"


def one_of(column: Column[Any], states: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a column is one of these states, written as a partial index writes it.

    With parameters in their place no database could know that the index holds all such rows.
    """
    return column.in_([literal_column(f"'{state}'") for state in states])


class Instant(TypeDecorator[datetime]):
    """An aware datetime, stored as microseconds since the epoch."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> int | None:  # noqa: ANN401, ARG002
        """Return the number that is stored."""
        return None if value is None else (value - EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: int | None, dialect: Any) -> datetime | None:  # noqa: ANN401, ARG002
        """Return the instant that was stored."""
        return None if value is None else EPOCH + timedelta(microseconds=value)


class SafeText(TypeDecorator[str]):
    """Text that any database takes: NUL and half surrogate pairs are replaced, and it is cut at a length.

    For what comes from vendors and people and is shown to people; storing it must not fail on its content.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:  # noqa: ANN401, ARG002
        """Return the text that is stored."""
        return safe_text(value)


def safe_text(value: str | None) -> str | None:
    """Return a text as ``SafeText`` stores it."""
    if value is None:
        return None
    whole = value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= MAX_TEXT else f"{whole[: MAX_TEXT - 1]}…"


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

engine = Table(
    "engine",
    metadata,
    # Which Temporal this ledger belongs to: a ledger at the wrong address must not be settled by it.
    Column("id", Integer, primary_key=True),
    Column("cluster", String(100), nullable=False),
    Column("namespace", String(200), nullable=False),
    Column("adopted_at", Instant, nullable=False),
)

tools = Table(
    "tools",
    metadata,
    # Written by each worker as it starts, so that a web tier knows the tools without importing them.
    Column("name", String(64), primary_key=True),
    Column("card", Text, nullable=False),
    Column("at", Instant, nullable=False),
)

conversations = Table(
    "conversations",
    metadata,
    Column("tenant", String(100), primary_key=True),
    Column("user", String(100), primary_key=True),
    Column("conversation", String(200), primary_key=True),
    Column("created_at", Instant, nullable=False),
    Column("turns", Integer, nullable=False, server_default=text("0")),
)

turns = Table(
    "turns",
    metadata,
    Column("tenant", String(100), primary_key=True),
    Column("turn", String(64), primary_key=True),
    Column("user", String(100), nullable=False),
    Column("conversation", String(200), nullable=False),
    Column("position", Integer, nullable=False),
    Column("start_digest", String(64), nullable=False),
    Column("state", String(20), nullable=False),
    Column("nonce", String(64), nullable=False),
    Column("message", Text, nullable=False),
    Column("model", String(100), nullable=False),
    Column("policies", Text, nullable=False),
    Column("deadline_ms", Integer),
    # The fence: set once, by whichever door came first. From then on no gate opens.
    Column("fence", Instant),
    Column("fence_cause", String(20)),
    Column("fence_via", String(20)),
    Column("fence_by", SafeText),
    Column("seen", Integer),
    Column("reason", SafeText),
    # The attempt that writes the text of a step: one that is older writes nothing any more.
    Column("writer", String(200)),
    Column("next_event", Integer, nullable=False),
    Column("next_order", Integer, nullable=False),
    Column("next_seq", Integer, nullable=False),
    # Set where something is left to follow after the turn: the sweeper's list, however large the ledger is.
    Column("follow", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", Instant, nullable=False),
    Column("begun_at", Instant),
    Column("ended_at", Instant),
    ForeignKeyConstraint(
        ["tenant", "user", "conversation"],
        ["conversations.tenant", "conversations.user", "conversations.conversation"],
    ),
    Index("ix_turns_conversation", "tenant", "user", "conversation", "position", unique=True),
    Index(
        "ix_turns_one_open",
        "tenant",
        "user",
        "conversation",
        unique=True,
        sqlite_where=text(among(OCCUPYING)),
        postgresql_where=text(among(OCCUPYING)),
    ),
    Index(
        "ix_turns_queued",
        "tenant",
        "user",
        "conversation",
        "position",
        sqlite_where=text(among(QUEUED)),
        postgresql_where=text(among(QUEUED)),
    ),
    Index(
        "ix_turns_open",
        "state",
        "created_at",
        sqlite_where=text(among(OPEN)),
        postgresql_where=text(among(OPEN)),
    ),
    Index("ix_turns_follow", "created_at", sqlite_where=text("follow"), postgresql_where=text("follow")),
)

steps = Table(
    "steps",
    metadata,
    Column("tenant", String(100), primary_key=True),
    Column("turn", String(64), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("text", Text, nullable=False),
    Column("finish", String(40), nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("at", Instant, nullable=False),
    ForeignKeyConstraint(["tenant", "turn"], ["turns.tenant", "turns.turn"]),
)

calls = Table(
    "calls",
    metadata,
    Column("tenant", String(100), primary_key=True),
    Column("turn", String(64), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("index", Integer, primary_key=True),
    # The model's own id for the call: shown back to it, never trusted to be unique.
    Column("call_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("kind", String(20), nullable=False),
    # Which of the turn's calls with these very arguments this is; part of the effect's key.
    Column("digest", String(64)),
    Column("occurrence", Integer, nullable=False, server_default=text("1")),
    # An effect's result is read from its row; this is the result of every other call.
    Column("effect", String(64)),
    Column("repeated", Boolean, nullable=False, server_default=text("false")),
    Column("result", Text),
    Column("is_error", Boolean, nullable=False, server_default=text("false")),
    ForeignKeyConstraint(["tenant", "turn", "step"], ["steps.tenant", "steps.turn", "steps.step"]),
)

effects = Table(
    "effects",
    metadata,
    Column("tenant", String(100), primary_key=True),
    Column("effect", String(64), primary_key=True),
    Column("turn", String(64), nullable=False),
    Column("user", String(100), nullable=False),
    Column("conversation", String(200), nullable=False),
    Column("seq", Integer, nullable=False),
    # The call that prepared it; a repeat of the call points here and has no row of its own.
    Column("step", Integer, nullable=False),
    Column("call", Integer, nullable=False),
    Column("tool", String(64), nullable=False),
    Column("system", String(64), nullable=False),
    Column("identity", SafeText),
    Column("arguments", Text, nullable=False),
    Column("arguments_digest", String(64), nullable=False),
    Column("occurrence", Integer, nullable=False),
    Column("key", String(64), nullable=False),
    Column("undo_key", String(64), nullable=False),
    Column("request", Text, nullable=False),
    Column("receipt", Text),
    Column("result", Text),
    Column("evidence", Text),
    # What the tool declared when the effect was prepared: a later deploy doesn't change its rules.
    Column("plan", Text, nullable=False),
    Column("policy", String(20), nullable=False),
    Column("delay_ms", Integer, nullable=False, server_default=text("0")),
    # What a person was shown; an answer must name it.
    Column("shown_digest", String(64), nullable=False, server_default=text("''")),
    # The version that prepare read of what the effect changes.
    Column("read_version", Text),
    Column("reversible", Boolean, nullable=False),
    Column("keyed", Boolean, nullable=False),
    Column("can_look_up", Boolean, nullable=False),
    Column("can_check_undone", Boolean, nullable=False, server_default=text("false")),
    Column("on_unknown", String(20), nullable=False, server_default=text("'resolve'")),
    # If its undo fails, those of effects that were committed before it wait for a person.
    Column("halts", Boolean, nullable=False, server_default=text("false")),
    Column("key_dies_with_undo", Boolean, nullable=False),
    Column("undo_keyed", Boolean, nullable=False),
    Column("key_life_ms", BigInteger),
    Column("send_by_ms", Integer, nullable=False),
    Column("landing_ms", Integer, nullable=False),
    Column("max_sends", Integer, nullable=False),
    Column("max_undo_sends", Integer, nullable=False),
    Column("title", SafeText, nullable=False),
    Column("no_undo_reason", SafeText),
    # Where it stands. Every change compares and sets state, version and token.
    Column("state", String(20), nullable=False),
    Column("version", Integer, nullable=False),
    Column("token", Integer, nullable=False),
    Column("held_for", String(20)),
    Column("expires_at", Instant),
    Column("not_before", Instant),
    # A person's answer: the first one counts, with what it was an answer to.
    Column("decision", String(20)),
    Column("decided_at", Instant),
    Column("decided_by", SafeText),
    Column("decided_via", String(20)),
    Column("decided_version", Integer),
    # A person's last word on an effect that needed one; all of them are in ``resolutions``.
    Column("resolution", String(20)),
    Column("error", SafeText),
    Column("owned", Boolean, nullable=False),
    Column("commit_order", Integer),
    Column("sends", Integer, nullable=False),
    Column("answers", Integer, nullable=False),
    Column("first_claim_at", Instant),
    Column("send_by", Instant),
    Column("undo_sends", Integer, nullable=False),
    Column("undo_refusals", Integer, nullable=False),
    Column("undo_send_by", Instant),
    Column("prepared_at", Instant, nullable=False),
    Column("at", Instant, nullable=False),
    Column("acknowledged_at", Instant),
    ForeignKeyConstraint(["tenant", "turn"], ["turns.tenant", "turns.turn"]),
    Index("ix_effects_key", "tenant", "key", unique=True),
    Index("ix_effects_turn", "tenant", "turn", "seq", unique=True),
    Index("ix_effects_owner", "tenant", "user", "conversation", "prepared_at"),
    Index(
        "ix_effects_unsettled_identity",
        "tenant",
        "system",
        "identity",
        sqlite_where=text(among(UNSETTLED)),
        postgresql_where=text(among(UNSETTLED)),
    ),
    Index(
        "ix_effects_outstanding",
        "tenant",
        "user",
        "at",
        sqlite_where=text(among(OUTSTANDING)),
        postgresql_where=text(among(OUTSTANDING)),
    ),
    Index(
        "ix_effects_attention",
        "tenant",
        "at",
        "effect",
        sqlite_where=text(NEEDS_ATTENTION),
        postgresql_where=text(NEEDS_ATTENTION),
    ),
)

SAFE_TEXTS: Final = frozenset(column.name for column in effects.columns if isinstance(column.type, SafeText))
"""Columns of an effect whose text is stored as ``safe_text`` returns it."""

resolutions = Table(
    "resolutions",
    metadata,
    # Who found out what of an effect that needed a person. One effect can need one twice: what was found
    # applied may turn out not to be undone. Numbered in each effect from 1; never changed.
    Column("tenant", String(100), primary_key=True),
    Column("effect", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("state", String(20), nullable=False),
    Column("word", String(20), nullable=False),
    Column("note", SafeText, nullable=False),
    Column("by", SafeText, nullable=False),
    Column("via", String(20), nullable=False),
    Column("at", Instant, nullable=False),
    ForeignKeyConstraint(["tenant", "effect"], ["effects.tenant", "effects.effect"]),
)

resources = Table(
    "resources",
    metadata,
    # One row for each effect on each resource. The epoch orders them: prepared earlier, gate earlier.
    Column("tenant", String(100), primary_key=True),
    Column("system", String(64), primary_key=True),
    Column("resource", String(200), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("effect", String(64), nullable=False),
    Column("turn", String(64), nullable=False),
    ForeignKeyConstraint(["tenant", "effect"], ["effects.tenant", "effects.effect"]),
    Index("ix_resources_effect", "tenant", "effect"),
)

turn_events = Table(
    "turn_events",
    metadata,
    Column("tenant", String(100), primary_key=True),
    Column("turn", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("kind", String(40), nullable=False),
    Column("data", Text, nullable=False),
    Column("at", Instant, nullable=False),
    ForeignKeyConstraint(["tenant", "turn"], ["turns.tenant", "turns.turn"]),
)
