"""Bad input, a database that is away, and upgrades."""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.ledgers import (
    ADA,
    Clock,
    Ledger,
    new_turn,
)
from turnsaga.errors import (
    InvalidRequest,
    StoreUnavailable,
    StoreUnusable,
)
from turnsaga.ledger import State
from turnsaga.store import (
    SqlStore,
)


@pytest.mark.parametrize("url", ["nonsense", "mysql://localhost/x", ""])
async def test_database_that_the_ledger_can_t_live_in_is_named(url: str) -> None:
    with pytest.raises(InvalidRequest, match="database"):
        SqlStore(url)


async def test_database_that_can_t_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/missing/ledger.db")

    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        await store.open()
    await store.close()


async def test_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("not a database, but long enough to be looked at as one " * 20)
    store = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")

    with pytest.raises(StoreUnusable, match="not a database"):
        await store.open()
    await store.close()


async def test_what_was_acknowledged_comes_back_once_it_has_moved(ledger: Ledger) -> None:
    ref = await ledger.turn()
    effect = await ledger.commit(ref, reversible=False, no_undo_reason="it can't")
    await ledger.store.acknowledge(ADA, effect.effect)
    await ledger.fence(ref)
    await ledger.store.next_steps(ref)
    stands = await ledger.store.account_effects(ADA, outstanding=True)
    await ledger.store.acknowledge(ADA, effect.effect)
    seen = await ledger.store.account_effects(ADA, outstanding=True)

    assert [view.state for view in stands] == [State.STANDING]
    assert seen == ()


async def test_start_that_names_no_model_is_the_same_start_under_another_default(ledger: Ledger) -> None:
    first = await ledger.store.start_turn(replace(new_turn(ADA, "c", "k"), model_asked=None, model="one"))
    again = await ledger.store.start_turn(replace(new_turn(ADA, "c", "k"), model_asked=None, model="two"))

    assert again.ref == first.ref


async def test_cancelled_caller_leaves_its_transaction_whole(ledger: Ledger) -> None:
    ref = await ledger.turn()
    work = asyncio.create_task(ledger.claim(ref))
    await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    kinds = await ledger.kinds(ref)

    assert kinds in (["turn_started"], ["turn_started", "tool_prepared", "tool_committing"])
    assert await ledger.store.append_text(ledger.step(ref), "the ledger still answers")


async def test_stored_key_is_read_back_and_not_made_again(ledger: Ledger) -> None:
    """A later version may make keys otherwise, or be handed the arguments in another order."""
    ref = await ledger.turn()
    first = await ledger.claim(ref, arguments={"a": 1, "b": 2})
    second = await ledger.claim(ref, arguments={"b": 2, "a": 1}, key="ts2_of_a_later_rule")
    assert first.row is not None
    assert second.row is not None

    assert second.row.key == first.row.key
    assert second.row.request == first.row.request


async def test_ledger_is_durable_before_the_gate_s_answer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqlStore(f"sqlite:///{path}")
    await store.open()
    ledger = Ledger(store, Clock())
    ref = await ledger.turn()
    await ledger.claim(ref)
    with sqlite3.connect(path) as other:
        rows = other.execute("SELECT state, sends, request FROM effects").fetchall()
        synchronous = other.execute("PRAGMA journal_mode").fetchone()
    other.close()
    await store.close()

    assert rows == [("committing", 1, '{"n":0}')]
    assert synchronous == ("wal",)
