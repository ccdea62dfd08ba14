"""The first ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("user", sa.String(length=100), nullable=False),
        sa.Column("conversation", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("turns", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "user", "conversation", name=op.f("pk_conversations")),
    )
    op.create_table(
        "engine",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cluster", sa.String(length=100), nullable=False),
        sa.Column("namespace", sa.String(length=200), nullable=False),
        sa.Column("adopted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_engine")),
    )
    op.create_table(
        "tools",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tools")),
    )
    op.create_table(
        "turns",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("turn", sa.String(length=64), nullable=False),
        sa.Column("user", sa.String(length=100), nullable=False),
        sa.Column("conversation", sa.String(length=200), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("start_digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("nonce", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("model", sa.String(length=100), nullable=False),
        sa.Column("policies", sa.Text(), nullable=False),
        sa.Column("deadline_ms", sa.Integer(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=True),
        sa.Column("fence_cause", sa.String(length=20), nullable=True),
        sa.Column("fence_via", sa.String(length=20), nullable=True),
        sa.Column("fence_by", sa.Text(), nullable=True),
        sa.Column("seen", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("next_event", sa.Integer(), nullable=False),
        sa.Column("next_order", sa.Integer(), nullable=False),
        sa.Column("next_seq", sa.Integer(), nullable=False),
        sa.Column("follow", sa.Boolean(), server_default=sa.text("(false)"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("begun_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant", "user", "conversation"],
            ["conversations.tenant", "conversations.user", "conversations.conversation"],
            name=op.f("fk_turns_conversations"),
        ),
        sa.PrimaryKeyConstraint("tenant", "turn", name=op.f("pk_turns")),
    )
    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.create_index(
            "ix_turns_conversation", ["tenant", "user", "conversation", "position"], unique=True
        )
        batch_op.create_index(
            "ix_turns_follow",
            ["created_at"],
            unique=False,
            sqlite_where=sa.text("follow"),
            postgresql_where=sa.text("follow"),
        )
        batch_op.create_index(
            "ix_turns_one_open",
            ["tenant", "user", "conversation"],
            unique=True,
            sqlite_where=sa.text("state IN ('running', 'aborting', 'failing')"),
            postgresql_where=sa.text("state IN ('running', 'aborting', 'failing')"),
        )
        batch_op.create_index(
            "ix_turns_open",
            ["state", "created_at"],
            unique=False,
            sqlite_where=sa.text("state IN ('running', 'aborting', 'failing')"),
            postgresql_where=sa.text("state IN ('running', 'aborting', 'failing')"),
        )

    op.create_table(
        "effects",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("effect", sa.String(length=64), nullable=False),
        sa.Column("turn", sa.String(length=64), nullable=False),
        sa.Column("user", sa.String(length=100), nullable=False),
        sa.Column("conversation", sa.String(length=200), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("call", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(length=64), nullable=False),
        sa.Column("system", sa.String(length=64), nullable=False),
        sa.Column("identity", sa.Text(), nullable=True),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("arguments_digest", sa.String(length=64), nullable=False),
        sa.Column("occurrence", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("undo_key", sa.String(length=64), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("policy", sa.String(length=20), nullable=False),
        sa.Column("reversible", sa.Boolean(), nullable=False),
        sa.Column("keyed", sa.Boolean(), nullable=False),
        sa.Column("can_look_up", sa.Boolean(), nullable=False),
        sa.Column("key_dies_with_undo", sa.Boolean(), nullable=False),
        sa.Column("undo_keyed", sa.Boolean(), nullable=False),
        sa.Column("key_life_ms", sa.BigInteger(), nullable=True),
        sa.Column("send_by_ms", sa.Integer(), nullable=False),
        sa.Column("landing_ms", sa.Integer(), nullable=False),
        sa.Column("max_sends", sa.Integer(), nullable=False),
        sa.Column("max_undo_sends", sa.Integer(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("no_undo_reason", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("held_for", sa.String(length=20), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("owned", sa.Boolean(), nullable=False),
        sa.Column("commit_order", sa.Integer(), nullable=True),
        sa.Column("sends", sa.Integer(), nullable=False),
        sa.Column("answers", sa.Integer(), nullable=False),
        sa.Column("first_claim_at", sa.BigInteger(), nullable=True),
        sa.Column("send_by", sa.BigInteger(), nullable=True),
        sa.Column("undo_sends", sa.Integer(), nullable=False),
        sa.Column("undo_refusals", sa.Integer(), nullable=False),
        sa.Column("prepared_at", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("acknowledged_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant", "turn"], ["turns.tenant", "turns.turn"], name=op.f("fk_effects_turns")
        ),
        sa.PrimaryKeyConstraint("tenant", "effect", name=op.f("pk_effects")),
    )
    with op.batch_alter_table("effects", schema=None) as batch_op:
        batch_op.create_index("ix_effects_key", ["tenant", "key"], unique=True)
        batch_op.create_index(
            "ix_effects_outstanding",
            ["tenant", "user", "at"],
            unique=False,
            sqlite_where=sa.text("state IN ('standing', 'unknown', 'accepted', 'compensation_failed')"),
            postgresql_where=sa.text("state IN ('standing', 'unknown', 'accepted', 'compensation_failed')"),
        )
        batch_op.create_index(
            "ix_effects_owner", ["tenant", "user", "conversation", "prepared_at"], unique=False
        )
        batch_op.create_index("ix_effects_turn", ["tenant", "turn", "seq"], unique=True)
        batch_op.create_index(
            "ix_effects_unsettled_identity",
            ["tenant", "system", "identity"],
            unique=False,
            sqlite_where=sa.text(
                "state IN ('committing', 'accepted', 'unknown', 'compensating', 'compensation_failed')"
            ),
            postgresql_where=sa.text(
                "state IN ('committing', 'accepted', 'unknown', 'compensating', 'compensation_failed')"
            ),
        )

    op.create_table(
        "steps",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("turn", sa.String(length=64), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("finish", sa.String(length=40), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "turn"], ["turns.tenant", "turns.turn"], name=op.f("fk_steps_turns")
        ),
        sa.PrimaryKeyConstraint("tenant", "turn", "step", name=op.f("pk_steps")),
    )
    op.create_table(
        "turn_events",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("turn", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "turn"], ["turns.tenant", "turns.turn"], name=op.f("fk_turn_events_turns")
        ),
        sa.PrimaryKeyConstraint("tenant", "turn", "number", name=op.f("pk_turn_events")),
    )
    op.create_table(
        "calls",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("turn", sa.String(length=64), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column("occurrence", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("effect", sa.String(length=64), nullable=True),
        sa.Column("repeated", sa.Boolean(), server_default=sa.text("(false)"), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("is_error", sa.Boolean(), server_default=sa.text("(false)"), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "turn", "step"],
            ["steps.tenant", "steps.turn", "steps.step"],
            name=op.f("fk_calls_steps"),
        ),
        sa.PrimaryKeyConstraint("tenant", "turn", "step", "index", name=op.f("pk_calls")),
    )
    op.create_table(
        "resources",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("system", sa.String(length=64), nullable=False),
        sa.Column("resource", sa.String(length=200), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("effect", sa.String(length=64), nullable=False),
        sa.Column("turn", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "effect"], ["effects.tenant", "effects.effect"], name=op.f("fk_resources_effects")
        ),
        sa.PrimaryKeyConstraint("tenant", "system", "resource", "epoch", name=op.f("pk_resources")),
    )
    with op.batch_alter_table("resources", schema=None) as batch_op:
        batch_op.create_index("ix_resources_effect", ["tenant", "effect"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("resources", schema=None) as batch_op:
        batch_op.drop_index("ix_resources_effect")

    op.drop_table("resources")
    op.drop_table("calls")
    op.drop_table("turn_events")
    op.drop_table("steps")
    with op.batch_alter_table("effects", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_effects_unsettled_identity",
            sqlite_where=sa.text(
                "state IN ('committing', 'accepted', 'unknown', 'compensating', 'compensation_failed')"
            ),
            postgresql_where=sa.text(
                "state IN ('committing', 'accepted', 'unknown', 'compensating', 'compensation_failed')"
            ),
        )
        batch_op.drop_index("ix_effects_turn")
        batch_op.drop_index("ix_effects_owner")
        batch_op.drop_index(
            "ix_effects_outstanding",
            sqlite_where=sa.text("state IN ('standing', 'unknown', 'accepted', 'compensation_failed')"),
            postgresql_where=sa.text("state IN ('standing', 'unknown', 'accepted', 'compensation_failed')"),
        )
        batch_op.drop_index("ix_effects_key")

    op.drop_table("effects")
    with op.batch_alter_table("turns", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_turns_open",
            sqlite_where=sa.text("state IN ('running', 'aborting', 'failing')"),
            postgresql_where=sa.text("state IN ('running', 'aborting', 'failing')"),
        )
        batch_op.drop_index(
            "ix_turns_one_open",
            sqlite_where=sa.text("state IN ('running', 'aborting', 'failing')"),
            postgresql_where=sa.text("state IN ('running', 'aborting', 'failing')"),
        )
        batch_op.drop_index(
            "ix_turns_follow", sqlite_where=sa.text("follow"), postgresql_where=sa.text("follow")
        )
        batch_op.drop_index("ix_turns_conversation")

    op.drop_table("turns")
    op.drop_table("tools")
    op.drop_table("engine")
    op.drop_table("conversations")
