"""Postgres knows soon enough what a ledger's tables hold: until it does, it reads whole tenants."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import pytest
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from tests.databases import Postgres
from tests.store.ledgers import Clock, Ledger
from turnsaga.store import SqlStore, _engine
from turnsaga.store._statistics import Growth, analyze_grown

_ROWS_OF: Final = {
    "turns WHERE tenant = $1 AND turn = $2": "pk_turns",
    "effects WHERE tenant = $1 AND effect = $2": "pk_effects",
    "effects WHERE tenant = $1 AND key = $2": "ix_effects_key",
}


@pytest.fixture
async def ledger(postgres: Postgres) -> AsyncIterator[Ledger]:
    store = SqlStore(postgres.new_database(), connections=2)
    await store.open()
    yield Ledger(store, Clock())
    await store.close()


async def twenty_turns(ledger: Ledger) -> None:
    for _ in range(20):
        await ledger.commit(await ledger.turn())


def plans(connection: Connection) -> dict[str, str]:
    """Return how a prepared statement goes about each question."""
    return {
        asked: str(connection.exec_driver_sql(f"EXPLAIN (GENERIC_PLAN) SELECT * FROM {asked}").scalar())
        for asked in _ROWS_OF
    }


def test_process_looks_ever_more_rarely() -> None:
    growth = Growth()

    due = [number for number in range(1, 20_000) if growth.is_due()]

    assert due == [256, 1024, 4096, 16384]


async def test_table_that_has_grown_is_looked_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_growth: Growth) -> bool:
        return False

    monkeypatch.setattr(Growth, "is_due", never)
    await twenty_turns(ledger)
    first = await ledger.store._database.write(analyze_grown)
    second = await ledger.store._database.write(analyze_grown)
    for _ in range(4):
        await twenty_turns(ledger)
    third = await ledger.store._database.write(analyze_grown)

    assert {"turns", "effects", "calls", "turn_events"} <= set(first)
    assert "resolutions" not in first, "it is empty"
    assert second == ()
    assert {"turns", "effects"} <= set(third)


async def test_questions_for_one_row_go_by_the_index_of_that_row(ledger: Ledger) -> None:
    await twenty_turns(ledger)
    await ledger.store._database.write(analyze_grown)

    found = await ledger.store._database.read(plans)

    assert all(index in found[asked] for asked, index in _ROWS_OF.items()), found


async def test_what_is_prepared_on_an_empty_table_goes_by_its_index_too(ledger: Ledger) -> None:
    """Such a plan stays until the next look, however many rows there are by then."""
    await twenty_turns(ledger)
    await ledger.store._database.write(analyze_grown)

    def plan(connection: Connection) -> str:
        return str(connection.exec_driver_sql("EXPLAIN SELECT * FROM steps WHERE turn = 'x'").scalar())

    assert "pk_steps" in await ledger.store._database.read(plan)


async def test_tables_are_altered_as_they_lie(ledger: Ledger) -> None:
    told: list[object] = []

    def ask(connection: Connection) -> None:
        told.append([connection.scalar(text(f"SHOW {name}")) for name in ("enable_seqscan", "jit")])

    await ledger.store._database.migrate(ask)
    await ledger.store._database.write(ask)

    assert told == [["on", "off"], ["off", "off"]]


async def test_process_that_writes_has_it_done(ledger: Ledger) -> None:
    await twenty_turns(ledger)
    step = ledger.step(await ledger.turn())
    with capture_logs() as lines:
        for _ in range(256):
            await ledger.store.append_text(step, "word")
        await ledger.store.close()

    [told] = [line for line in lines if line["event"] == "ledger.analyzed"]
    assert {"turns", "effects"} <= set(told["tables"])


async def test_one_process_at_a_time_looks(ledger: Ledger) -> None:
    await twenty_turns(ledger)
    held, free = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('turnsaga/analyze', 0))"))
        loop.call_soon_threadsafe(held.set)
        asyncio.run_coroutine_threadsafe(free.wait(), loop).result(10)

    holding = asyncio.create_task(ledger.store._database.write(hold))
    await held.wait()
    meanwhile = await ledger.store._database.write(analyze_grown)
    free.set()
    await holding

    assert meanwhile == ()
    assert await ledger.store._database.write(analyze_grown)


async def test_ledger_works_on_where_it_can_t_be_done(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_connection: Connection) -> tuple[str, ...]:
        raise PermissionError("not yours")

    monkeypatch.setattr(_engine, "analyze_grown", fail)
    step = ledger.step(await ledger.turn())
    with capture_logs() as lines:
        for _ in range(300):
            await ledger.store.append_text(step, "word")
        await ledger.store.close()

    assert [line["reason"] for line in lines if line["event"] == "ledger.not_analyzed"] == ["PermissionError"]
