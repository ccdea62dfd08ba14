"""Held effects, answers to them, and turns that are queued."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_QUEUED = sa.text("state IN ('queued')")
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
