"""Statements that the driver runs itself: the same values, errors and transactions as by SQLAlchemy."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from tests.databases import Postgres
from tests.store.ledgers import ADA, Clock, Ledger, new_turn
from turnsaga.models import TurnRef
from turnsaga.store import SqlStore, schema
from turnsaga.store._prepared import Prepared
from turnsaga.store._statements import TURN, matches

_turns, _events = schema.turns, schema.turn_events
ADD_EVENT: Final = Prepared(insert(_events))
SET_TURN: Final = Prepared(update(_turns).where(matches(_turns.c.tenant, _turns.c.turn)))
COUNT: Final = Prepared(select(func.count()).select_from(_events).where(matches(_events.c.turn)))
AT: Final = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)


def named(ref: TurnRef) -> dict[str, Any]:
    return {"tenant_is": ref.tenant, "turn_is": ref.turn}


def event(ref: TurnRef, number: int) -> dict[str, Any]:
    return {
        "tenant": ref.tenant,
        "turn": ref.turn,
        "number": number,
        "kind": "text_delta",
        "data": "{}",
        "at": AT,
    }


async def test_row_is_the_one_that_sqlalchemy_reads(ledger: Ledger) -> None:
    ref = await ledger.turn()
    odd = "it's 100 % \\ of $1 :name, ünïcode 🙂 \x00 and \ud800"

    def change(connection: Connection) -> None:
        SET_TURN.run(connection, {**named(ref), "reason": odd, "begun_at": AT, "follow": True})

    def read(connection: Connection) -> tuple[dict[str, Any], dict[str, Any]]:
        where = (_turns.c.tenant == ref.tenant) & (_turns.c.turn == ref.turn)
        by_sqlalchemy = connection.execute(select(_turns).where(where)).one()
        return vars(TURN.run(connection, named(ref)).one()), dict(by_sqlalchemy._mapping)

    await ledger.store._database.write(change)
    row, expected = await ledger.store._database.read(read)

    assert row == expected
    assert row["reason"] == schema.safe_text(odd)
    assert (row["begun_at"], row["follow"], row["ended_at"]) == (AT, True, None)


async def test_no_row_one_row_and_changed_rows_are_told_apart(ledger: Ledger) -> None:
    ref = await ledger.turn()

    def ask(connection: Connection) -> tuple[bool, int, int]:
        other = {**named(ref), "turn_is": "another"}
        none = TURN.run(connection, other).one_or_none() is None
        changed = [SET_TURN.run(connection, {**who, "seen": 1}).rowcount for who in (named(ref), other)]
        return (none, changed[0], changed[1])

    assert await ledger.store._database.write(ask) == (True, 1, 0)


async def test_what_fails_at_the_end_leaves_nothing_of_its_transaction(ledger: Ledger) -> None:
    """Also of what was run before it, and of what waited for the COMMIT together with it."""
    ref = await ledger.turn()

    def twice(connection: Connection) -> None:
        SET_TURN.run(connection, {**named(ref), "seen": 77})
        ADD_EVENT.run_later(connection, event(ref, 900))
        ADD_EVENT.run_later(connection, event(ref, 901))
        ADD_EVENT.run_later(connection, event(ref, 900))

    def look(connection: Connection) -> tuple[int, int | None]:
        count: int = COUNT.run(connection, {"turn_is": ref.turn}).scalar_one()
        return count, TURN.run(connection, named(ref)).one().seen

    before = await ledger.store._database.read(look)
    with pytest.raises(IntegrityError):
        await ledger.store._database.write(twice)
    after = await ledger.store._database.read(look)

    assert after == before
    assert await ledger.store.append_text(ledger.step(ref), "the connection is as good as before")


async def test_statements_of_both_kinds_are_one_transaction(ledger: Ledger) -> None:
    ref = await ledger.turn()

    def mixed(connection: Connection) -> None:
        connection.execute(text("UPDATE turns SET seen = 5"))
        SET_TURN.run(connection, {**named(ref), "reason": "undone with it"})
        ADD_EVENT.run_later(connection, event(ref, 900))
        raise ValueError("not this time")

    with pytest.raises(ValueError, match="not this time"):
        await ledger.store._database.write(mixed)
    row = await ledger.store._database.read(lambda connection: TURN.run(connection, named(ref)).one())
    kinds = await ledger.kinds(ref)

    assert (row.seen, row.reason) == (None, None)
    assert kinds == ["turn_started"], "nor does the next transaction write what this one had gathered"


async def test_conversation_is_read_whole_whatever_its_length(ledger: Ledger) -> None:
    """Its turns are asked about in lists of a fixed length."""
    for _ in range(19):
        ref = await ledger.turn(conversation="long")
        await ledger.commit(ref)
        await ledger.store.complete_turn(ref)
    last = await ledger.store.start_turn(new_turn(ADA, "long", "last"))
    history = (await ledger.store.step_context(ledger.step(last.ref))).history

    assert len(history) == 20
    assert [len(turn.steps) for turn in history] == [1] * 19 + [0]
    assert all(step.calls[0].result for turn in history for step in turn.steps)


async def test_statement_that_fails_as_it_is_prepared_can_be_run_again(ledger: Ledger) -> None:
    """What the server has prepared it doesn't prepare twice, whatever became of the transaction."""
    ref = await ledger.turn()
    added = Prepared(insert(_events))

    def fresh(connection: Connection, number: int) -> None:
        # Other columns make another text, which no transaction before has prepared.
        row = event(ref, number)
        added.run(connection, {name: row[name] for name in sorted(row)})

    for _ in range(2):
        with pytest.raises(IntegrityError):
            await ledger.store._database.write(fresh, 1)
    await ledger.store._database.write(fresh, 900)

    count = await ledger.store._database.read(
        lambda connection: COUNT.run(connection, {"turn_is": ref.turn}).scalar_one()
    )
    assert count == 2


@pytest.mark.parametrize("before", [0, 1], ids=["at its first statement", "at a later one"])
async def test_transaction_whose_connection_dies_is_run_again(postgres: Postgres, before: int) -> None:
    url = postgres.new_database()
    store = SqlStore(url, connections=1)
    await store.open()
    ledger = Ledger(store, Clock())
    ref = await ledger.turn()
    attempts: list[int] = []

    def cut(connection: Connection) -> None:
        for _ in range(before):
            SET_TURN.run(connection, {**named(ref), "seen": 1})
        attempts.append(len(attempts))
        if len(attempts) == 1:
            postgres.drop_connections(url)
        SET_TURN.run(connection, {**named(ref), "seen": 2})
        ADD_EVENT.run_later(connection, event(ref, 900))

    await store._database.write(cut)
    count = await store._database.read(
        lambda connection: COUNT.run(connection, {"turn_is": ref.turn}).scalar_one()
    )
    await store.close()

    assert (attempts, count) == ([0, 1], 2)
