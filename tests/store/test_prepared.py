"""Statements that the driver runs itself: the same values, errors and transactions as by SQLAlchemy."""

from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import pytest
from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from tests.databases import Postgres
from tests.store.ledgers import ADA, APPLIED, Clock, Ledger, new_effect, new_turn
from tests.store.wire import wire_to
from turnsaga.models import TurnRef
from turnsaga.store import NewCall, NewReply, SqlStore, UndoOutcome, schema
from turnsaga.store._prepared import Prepared, Rows
from turnsaga.store._statements import TURN, matches

T = TypeVar("T")
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
        SET_TURN.ask(connection, {**named(ref), "seen": 6})
        raise ValueError("not this time")

    with pytest.raises(ValueError, match="not this time"):
        await ledger.store._database.write(mixed)
    row = await ledger.store._database.read(lambda connection: TURN.run(connection, named(ref)).one())
    kinds = await ledger.kinds(ref)

    assert (row.seen, row.reason) == (None, None)
    assert kinds == ["turn_started"], "nor does the next transaction write what this one had gathered"


async def test_what_is_asked_comes_before_what_is_run_after_it(ledger: Ledger) -> None:
    """Whoever runs it: the statement itself, another one, or SQLAlchemy."""
    ref = await ledger.turn()

    def mixed(connection: Connection) -> list[Any]:
        seen: list[Any] = []
        SET_TURN.ask(connection, {**named(ref), "seen": 1})
        first = TURN.ask(connection, named(ref))
        SET_TURN.ask(connection, {**named(ref), "seen": 2})
        second = TURN.ask(connection, named(ref))
        seen += [second.one().seen, first.one().seen]
        SET_TURN.ask(connection, {**named(ref), "seen": 3})
        seen.append(TURN.run(connection, named(ref)).one().seen)
        SET_TURN.ask(connection, {**named(ref), "seen": 4})
        seen.append(connection.scalar(text("SELECT seen FROM turns")))
        changed = SET_TURN.ask(connection, {**named(ref), "seen": 5})
        return [*seen, changed.rowcount, changed.rowcount]

    assert await ledger.store._database.write(mixed) == [2, 1, 3, 4, 1, 1]


async def test_what_is_asked_and_never_looked_at_is_done_all_the_same(ledger: Ledger) -> None:
    ref = await ledger.turn()

    def ask(connection: Connection) -> None:
        SET_TURN.ask(connection, {**named(ref), "seen": 7})
        ADD_EVENT.run_later(connection, event(ref, 900))

    await ledger.store._database.write(ask)
    row = await ledger.store._database.read(lambda connection: TURN.run(connection, named(ref)).one())

    assert row.seen == 7


@pytest.mark.parametrize("looked_at", [True, False], ids=["looked at", "left to the end"])
async def test_what_is_asked_and_fails_leaves_nothing_of_its_transaction(
    ledger: Ledger, *, looked_at: bool
) -> None:
    ref = await ledger.turn()

    def twice(connection: Connection) -> None:
        SET_TURN.ask(connection, {**named(ref), "seen": 77})
        ADD_EVENT.ask(connection, event(ref, 900))
        again = ADD_EVENT.ask(connection, event(ref, 900))
        after = TURN.ask(connection, named(ref))
        if looked_at:
            assert (again.rowcount, after.one()) is not None

    with pytest.raises(IntegrityError):
        await ledger.store._database.write(twice)
    row = await ledger.store._database.read(lambda connection: TURN.run(connection, named(ref)).one())

    assert row.seen is None
    assert await ledger.store.append_text(ledger.step(ref), "the connection is as good as before")


async def test_answer_that_wasn_t_looked_at_isn_t_taken_from_another_transaction(postgres: Postgres) -> None:
    store = SqlStore(postgres.new_database(), connections=1)
    await store.open()
    ref = await Ledger(store, Clock()).turn()
    kept: list[Rows] = []

    def ask(connection: Connection) -> None:
        kept.append(TURN.ask(connection, named(ref)))

    def look(connection: Connection) -> object:
        COUNT.ask(connection, {"turn_is": ref.turn})
        return kept[0].one()

    await store._database.read(ask)
    with pytest.raises(RuntimeError, match="within its transaction"):
        await store._database.read(look)
    await store.close()


async def test_transactions_of_a_turn_s_way_take_few_exchanges_with_the_server(postgres: Postgres) -> None:
    """Its row and what is read under it, what is written by compare-and-set, and the rest with the COMMIT.

    Each waits for the network, and a turn has sixteen of them.
    """
    async with wire_to(postgres.new_database()) as wire:
        store = SqlStore(wire.url, connections=1)
        await store.open()
        ledger = Ledger(store, Clock())
        took: dict[str, int] = {}

        async def counted(name: str, doing: Awaitable[T]) -> T:
            before = wire.exchanges
            done = await doing
            took[name] = wire.exchanges - before
            return done

        async def life(key: str) -> None:
            started = await counted("start", store.start_turn(new_turn(ADA, key, key)))
            ref = started.ref
            await counted("first request", store.step_context(ledger.step(ref)))
            call = NewCall(call_id="c", tool="note", arguments="{}", kind="effect")
            said = NewReply(text="hi", finish="tool_call", input_tokens=1, output_tokens=1, calls=(call,))
            await counted("reply", store.record_reply(ledger.step(ref), said))
            new = new_effect(ref, 0, identity=None)
            claim = await counted("claim", store.draft_and_claim(ledger.call(ref), lambda _: new))
            assert claim.row is not None
            row = claim.row
            await counted("outcome", store.record_commit(row.ref, row.token, APPLIED, claimed=row))
            await counted(
                "second request", store.step_context(ledger.step(ref).model_copy(update={"step": 2}))
            )
            await counted("text", store.append_text(ledger.step(ref), "so far"))
            await counted("fence", ledger.fence(ref))
            undo = (await counted("claim of the undo", store.claim_undo(row.ref))).row
            undone = UndoOutcome(undone=True)
            await counted("undo", store.record_undo(undo.ref, undo.token, undone, claimed=undo))

        # What is run for the first time is looked at by SQLAlchemy, and prepared on its way.
        await life("first")
        await life("second")
        await store.close()

    assert took == {
        "start": 3,
        "first request": 3,
        "reply": 2,
        "claim": 3,
        "outcome": 3,
        "second request": 4,
        "text": 2,
        "fence": 4,
        "claim of the undo": 3,
        "undo": 5,
    }


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
