"""Held effects, answers to them, turns that are queued, and effects that need a person."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_QUEUED = sa.text("state IN ('queued')")
_NEEDS_ATTENTION = sa.text(
    "(state = 'compensation_failed' OR (owned AND state IN ('accepted', 'committing', 'unknown')))"
)
_OPEN = sa.text("state IN ('queued', 'running', 'aborting', 'failing')")


def upgrade() -> None:
    # One at a time, without copying the table: each is NULL or has a default.
    for column in (
        sa.Column("delay_ms", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("shown_digest", sa.String(length=64), server_default=sa.text("''"), nullable=False),
        sa.Column("read_version", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("decision", sa.String(length=20), nullable=True),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("decided_via", sa.String(length=20), nullable=True),
        sa.Column("decided_version", sa.Integer(), nullable=True),
        sa.Column("resolution", sa.String(length=20), nullable=True),
    ):
        op.add_column("effects", column)
    op.execute("UPDATE effects SET shown_digest = arguments_digest")
    op.create_index(
        "ix_turns_queued",
        "turns",
        ["tenant", "user", "conversation", "position"],
        unique=False,
        sqlite_where=_QUEUED,
        postgresql_where=_QUEUED,
    )
    op.drop_index("ix_turns_open", table_name="turns")
    op.create_index(
        "ix_turns_open",
        "turns",
        ["state", "created_at"],
        unique=False,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_table(
        "resolutions",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("effect", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("word", sa.String(length=20), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("via", sa.String(length=20), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "effect"],
            ["effects.tenant", "effects.effect"],
            name=op.f("fk_resolutions_effects"),
        ),
        sa.PrimaryKeyConstraint("tenant", "effect", "number", name=op.f("pk_resolutions")),
    )
    op.create_index(
        "ix_effects_attention",
        "effects",
        ["tenant", "at", "effect"],
        unique=False,
        sqlite_where=_NEEDS_ATTENTION,
        postgresql_where=_NEEDS_ATTENTION,
    )
