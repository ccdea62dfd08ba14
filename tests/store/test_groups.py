"""Transactions that wait for SQLite share a COMMIT: each is whole by itself, and is answered after it."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from tests.stack import eventually
from tests.store.ledgers import Clock, Ledger
from turnsaga.errors import StoreUnavailable
from turnsaga.store import SqlStore, _engine
from turnsaga.store._engine import Database
from turnsaga.store._groups import Group
from turnsaga.store._sqlite import SqliteDriver
from turnsaga.store._unit import TurnUnit


class Shop:
    """A database with one table, its transactions held back until enough of them wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(f"sqlite:///{path}", connections=1)
        self._held, self._free = threading.Event(), threading.Event()

    async def waiting(self, *asked: Callable[[], Any]) -> list[Any]:
        """Ask for all of it while another transaction is under way; return what became of each."""
        self._held.clear()
        self._free.clear()

        def hang(connection: Connection) -> None:
            self._held.set()
            assert self._free.wait(10)
            _insert(connection, "first")

        hanging = asyncio.create_task(self.database.write(hang))
        await eventually(self._held.is_set, what="the first transaction")
        tasks = [asyncio.create_task(one()) for one in asked]
        waiting = self.database._threads._jobs
        await eventually(lambda: waiting.qsize() == len(asked), what="those that wait")
        self._free.set()
        first, *others = await asyncio.gather(hanging, *tasks, return_exceptions=True)
        return [first, *others]

    def items(self) -> list[str]:
        """Return what another process sees."""
        with sqlite3.connect(self.path) as other:
            found = [name for (name,) in other.execute("SELECT name FROM items ORDER BY rowid")]
        other.close()
        return found

    def put(self, name: str) -> Callable[[], Any]:
        """Return what asks for a row to be inserted."""
        return lambda: self.database.write(_insert, name)


def _insert(connection: Connection, name: str) -> str:
    connection.execute(text("INSERT INTO items (name) VALUES (:name)"), {"name": name})
    return name


def _names(connection: Connection) -> list[str]:
    return list(connection.scalars(text("SELECT name FROM items ORDER BY rowid")))


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Shop]:
    shop = Shop(path / "shop.db")
    await shop.database.write(
        lambda connection: connection.execute(text("CREATE TABLE items (name TEXT PRIMARY KEY)")).close()
    )
    yield shop
    await shop.database.close()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note every COMMIT."""
    seen: list[str] = []
    commit = SqliteDriver.commit

    def noted(self: SqliteDriver) -> None:
        seen.append("COMMIT")
        commit(self)

    monkeypatch.setattr(SqliteDriver, "commit", noted)
    return seen


async def test_what_waits_shares_a_commit_in_the_order_in_which_it_was_asked(
    tmp_path: Path, commits: list[str]
) -> None:
    async with opened(tmp_path) as shop:
        commits.clear()
        told = await shop.waiting(*(shop.put(f"n{number}") for number in range(20)))
        one_by_one = [await shop.put("later")(), await shop.put("last")()]

        assert commits == ["COMMIT"] * 3
        assert told == [None, *(f"n{number}" for number in range(20))]
        assert shop.items() == ["first", *(f"n{number}" for number in range(20)), *one_by_one]


async def test_at_most_so_many_share_one(tmp_path: Path, commits: list[str]) -> None:
    async with opened(tmp_path) as shop:
        commits.clear()
        told = await shop.waiting(*(shop.put(f"n{number}") for number in range(70)))

        assert commits == ["COMMIT"] * 3
        assert len(told) == len(shop.items()) == 71


async def test_one_that_fails_leaves_nothing_and_the_others_whole(tmp_path: Path) -> None:
    def fail(connection: Connection) -> None:
        _insert(connection, "of no use")
        raise LookupError("mine alone")

    async with opened(tmp_path) as shop:
        told = await shop.waiting(shop.put("a"), lambda: shop.database.write(fail), shop.put("b"))

        assert isinstance(told.pop(2), LookupError)
        assert told == [None, "a", "b"]
        assert shop.items() == ["first", "a", "b"]


async def test_first_that_fails_takes_nobody_along(tmp_path: Path) -> None:
    held, free = threading.Event(), threading.Event()

    def fail(connection: Connection) -> None:
        held.set()
        assert free.wait(10)
        _insert(connection, "of no use")
        raise LookupError("mine alone")

    async with opened(tmp_path) as shop:
        failing = asyncio.create_task(shop.database.write(fail))
        await eventually(held.is_set, what="the first transaction")
        other = asyncio.create_task(shop.put("a")())
        await eventually(lambda: shop.database._threads._jobs.qsize() == 1, what="the one that waits")
        free.set()

        with pytest.raises(LookupError, match="mine alone"):
            await failing
        assert await other == "a"
        assert shop.items() == ["a"]


async def test_row_that_is_there_already_is_its_own_inserter_s_error(tmp_path: Path) -> None:
    async with opened(tmp_path) as shop:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_engine, "_PAUSES", (0.01,))
            told = await shop.waiting(shop.put("a"), shop.put("first"), shop.put("b"))

        assert isinstance(told.pop(2), IntegrityError)
        assert told == [None, "a", "b"]
        assert shop.items() == ["first", "a", "b"]


async def test_one_that_only_reads_sees_what_came_before_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as shop:
        told = await shop.waiting(shop.put("a"), lambda: shop.database.read(_names), shop.put("b"))

        assert told[2] == ["first", "a"]


async def test_nobody_is_told_anything_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what was refused: it may have been for what another one wrote."""
    seen: list[list[str]] = []
    commit = SqliteDriver.commit
    running: list[asyncio.Future[Any]] = []

    def refuse(connection: Connection) -> None:
        raise LookupError(", ".join(_names(connection)))

    def asked(ask: Callable[[], Any]) -> Callable[[], Any]:
        async def whole() -> object:
            running.append(asyncio.ensure_future(ask()))
            return await running[-1]

        return whole

    async with opened(tmp_path) as shop:

        def slow(self: SqliteDriver) -> None:
            threading.Event().wait(0.1)
            seen.append([str(future.done()) for future in running])
            commit(self)

        monkeypatch.setattr(SqliteDriver, "commit", slow)
        told = await shop.waiting(asked(shop.put("a")), asked(lambda: shop.database.write(refuse)))

    assert seen == [["False", "False"]]
    assert told[:2] == [None, "a"]
    assert str(told[2]) == "first, a"


async def test_commit_that_fails_has_all_of_them_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [sqlite3.OperationalError("disk I/O error")]
    commit = SqliteDriver.commit

    def failing(self: SqliteDriver) -> None:
        if faults:
            raise faults.pop()
        commit(self)

    async with opened(tmp_path) as shop:
        monkeypatch.setattr(SqliteDriver, "commit", failing)
        told = await shop.waiting(shop.put("a"), shop.put("b"))

        assert faults == []
        assert told == [None, "a", "b"]
        assert sorted(shop.items()) == ["a", "b", "first"]


async def test_commit_that_goes_on_failing_is_everybody_s_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: SqliteDriver) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async with opened(tmp_path) as shop:
        with monkeypatch.context() as patched:
            patched.setattr(_engine, "_PAUSES", (0.01,))
            patched.setattr(SqliteDriver, "commit", failing)
            told = await shop.waiting(shop.put("a"), shop.put("b"))

        assert [type(one) for one in told] == [StoreUnavailable] * 3
        assert shop.items() == []
        assert await shop.put("c")() == "c"


async def test_one_that_ends_the_transaction_of_all_is_run_by_itself(tmp_path: Path) -> None:
    """As SQLite does where the disk is full, or memory."""
    ends = [1, 2]

    def end(connection: Connection) -> str:
        if ends:
            ends.pop()
            driver: Any = connection.connection.driver_connection
            driver.execute("ROLLBACK")
            raise sqlite3.OperationalError("database or disk is full")
        return _insert(connection, "c")

    async with opened(tmp_path) as shop:
        told = await shop.waiting(shop.put("a"), lambda: shop.database.write(end), shop.put("b"))

        assert ends == []
        assert told == [None, "a", "c", "b"]
        assert sorted(shop.items()) == ["a", "b", "c", "first"]


async def test_one_that_ends_it_each_time_is_its_own_caller_s_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    async with opened(tmp_path) as shop:
        monkeypatch.setattr(_engine, "_PAUSES", (0.01,))
        told = await shop.waiting(shop.put("a"), lambda: shop.database.write(end), shop.put("b"))

        assert isinstance(told.pop(2), StoreUnavailable)
        assert told == [None, "a", "b"]
        assert sorted(shop.items()) == ["a", "b", "first"]


async def test_one_that_the_database_refuses_is_run_again_by_itself(tmp_path: Path) -> None:
    refusals = [sqlite3.OperationalError("database table is locked")]

    def refused(connection: Connection) -> str:
        _insert(connection, "c")
        if refusals:
            raise refusals.pop()
        return "c"

    async with opened(tmp_path) as shop:
        told = await shop.waiting(shop.put("a"), lambda: shop.database.write(refused), shop.put("b"))

        assert told == [None, "a", "c", "b"]
        assert shop.items() == ["first", "a", "b", "c"]


async def test_tables_are_altered_in_a_transaction_of_their_own(tmp_path: Path, commits: list[str]) -> None:
    taken: list[int] = []
    gather = Group.gather

    def noted(self: Group) -> None:
        gather(self)
        taken.append(len(self._members))

    def alter(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE items ADD COLUMN more TEXT"))

    async with opened(tmp_path) as shop:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Group, "gather", noted)
            told = await shop.waiting(shop.put("a"), lambda: shop.database.migrate(alter), shop.put("b"))

        assert told == [None, "a", None, "b"]
        assert taken == [1, 0]
        assert shop.items() == ["first", "a", "b"]


async def test_what_waits_when_it_is_closed_is_done_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as shop:
        asked = [asyncio.create_task(shop.put(f"n{number}")()) for number in range(5)]
        await asyncio.sleep(0)

    assert [await one for one in asked] == [f"n{number}" for number in range(5)]
    assert shop.items() == [f"n{number}" for number in range(5)]


async def test_events_of_one_that_fails_aren_t_written_with_another_s(tmp_path: Path) -> None:
    """What a transaction gathers for its end goes with it."""
    store = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    await store.open()
    ledger = Ledger(store, Clock())
    failing, other = await ledger.turn(), await ledger.turn()
    held, free = threading.Event(), threading.Event()

    def hang(_connection: Connection) -> None:
        held.set()
        assert free.wait(10)

    def fail(connection: Connection) -> bool:
        unit = TurnUnit.hold(connection, failing, ledger.clock.now)
        unit.emit("text_delta", {"step": 1, "text": "never said"})
        raise LookupError("mine alone")

    hanging = asyncio.create_task(store._database.write(hang))
    await eventually(held.is_set, what="the first transaction")
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(store._database.write(fail)),
        asyncio.create_task(store.append_text(ledger.step(other), "said")),
    ]
    await eventually(lambda: store._database._threads._jobs.qsize() == len(tasks), what="those that wait")
    free.set()
    await hanging
    told = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = [await ledger.kinds(failing), await ledger.kinds(other)]
    await store.close()

    assert isinstance(told[0], LookupError)
    assert told[1] is True
    assert kinds == [["turn_started"], ["turn_started", "text_delta"]]
