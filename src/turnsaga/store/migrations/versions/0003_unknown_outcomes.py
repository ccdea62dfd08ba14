"""What a tool wants done about unknown outcomes and failed undos; undos under way; who writes a step."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # One at a time, without copying the table: each is NULL or has a default.
    for column in (
        sa.Column("can_check_undone", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("on_unknown", sa.String(length=20), server_default=sa.text("'resolve'"), nullable=False),
        sa.Column("halts", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("undo_send_by", sa.BigInteger(), nullable=True),
    ):
        op.add_column("effects", column)
    op.add_column("turns", sa.Column("writer", sa.String(length=200), nullable=True))
