"""Questions that are asked for ever find their rows by an index, however many turns there were before."""

from typing import Any

import pytest
from sqlalchemy import Connection, Select, text
from sqlalchemy.sql.dml import UpdateBase

from tests.store.ledgers import Ledger
from turnsaga.ledger import BLOCKS_IDENTITY, OPEN_TURN, State
from turnsaga.store import _attention, _blocking, _deployment, _queue, _replies, _statements, schema
from turnsaga.store._prepared import Prepared

ASKED: dict[str, tuple[Prepared | Select[*tuple[Any, ...]], dict[str, Any]]] = {
    "ix_effects_outstanding": (
        _replies._TO_NOTICE,
        {"tenant_is": "acme", "user_is": "ada", "turn_is": "trn"},
    ),
    "ix_effects_unsettled_identity": (
        _blocking._SAME_IDENTITY,
        {"tenant_is": "acme", "system_is": "pay", "identity_is": "INV-7", "effect_is": "eff"},
    ),
    "ix_turns_one_open": (
        _statements.OCCUPANT,
        {"tenant_is": "acme", "user_is": "ada", "conversation_is": "c1"},
    ),
    "ix_turns_queued": (
        _queue._FIRST,
        {"tenant_is": "acme", "user_is": "ada", "conversation_is": "c1"},
    ),
    "ix_turns_open": (_deployment._OPEN_BEFORE, {"before": 1, "most": 500}),
    "ix_turns_follow": (_deployment._FOLLOWED, {"most": 500}),
    "ix_effects_attention": (_attention._QUEUE, {"tenant_is": "acme", "most": 200}),
    "ix_effects_turn": (_statements.EFFECTS_OF_TURN, {"tenant_is": "acme", "turn_is": "trn"}),
}


def question(asked: Prepared | Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    built = asked.built if isinstance(asked, Prepared) else asked
    assert not isinstance(built, UpdateBase)
    return built


def plan(connection: Connection, statement: Select[*tuple[Any, ...]], told: dict[str, Any]) -> str:
    compiled = statement.compile(connection)
    explain = "EXPLAIN" if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    if connection.dialect.name == "postgresql":
        # An empty table is read as a whole, whatever its indexes; and a prepared statement's plan holds
        # for all parameters, so this one must too.
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        connection.execute(text("SET LOCAL enable_bitmapscan = off"))
    values = {**compiled.params, **told}
    order = compiled.positiontup
    found = (
        connection.exec_driver_sql(f"{explain} {compiled}", tuple(values[name] for name in order))
        if order is not None
        else connection.exec_driver_sql(f"{explain} {compiled}", values)
    )
    return "\n".join(str(row) for row in found)


@pytest.mark.parametrize("index", ASKED)
async def test_question_is_answered_from_its_index(ledger: Ledger, index: str) -> None:
    asked, told = ASKED[index]

    used = await ledger.store._database.read(plan, question(asked), told)

    assert index in used


async def test_queue_is_in_order_as_it_is_read_and_the_count_is_of_its_index_alone(ledger: Ledger) -> None:
    asked, told = ASKED["ix_effects_attention"]

    queue = await ledger.store._database.read(plan, question(asked), told)
    count = await ledger.store._database.read(plan, question(_attention._COUNT), {})

    assert "sort" not in queue.lower().replace("TEMP B-TREE".lower(), "sort")
    assert "ix_effects_attention" in count


@pytest.mark.parametrize(
    "statement", [_replies._EFFECTS_OF_TURNS, _replies._CALLS_OF_TURNS, _replies._STEPS_OF_TURNS]
)
async def test_history_is_read_by_its_turns(ledger: Ledger, statement: Prepared) -> None:
    """Not from the tables: a prepared statement keeps the plan that it got while they were small."""
    told = {"tenant_is": "acme", **dict.fromkeys(_replies._LIST, "trn")}

    used = await ledger.store._database.read(plan, question(statement), told)

    assert "turns" not in used
    assert "SCAN" not in used.upper().replace("INDEX SCAN", "")


def test_states_of_partial_indexes_are_those_of_the_protocol() -> None:
    assert set(schema.OPEN) == OPEN_TURN
    assert set(schema.UNSETTLED) == BLOCKS_IDENTITY
    assert set(schema.OUTSTANDING) == {
        State.STANDING,
        State.UNKNOWN,
        State.ACCEPTED,
        State.COMPENSATION_FAILED,
    }
