"""SQLite as the ledger's database: one connection, one thread, the write lock taken at once."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Boolean, Connection, Dialect, Engine, create_engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from turnsaga.store._prepared import Answer, Column, microseconds, place_driver
from turnsaga.store.schema import EPOCH, Instant

__all__ = ["SqliteDriver", "foreign_keys_off", "sqlite_engine"]


def sqlite_engine(url: URL) -> Engine:
    """Return an engine whose writing transactions hold the write lock from their first statement.

    A deferred transaction that reads first and is then refused the lock would have to be run again.
    """
    engine = create_engine(
        url, poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 5.0}
    )

    @event.listens_for(engine, "connect")
    def configure(dbapi: Any, record: ConnectionPoolEntry) -> None:  # noqa: ANN401  # the driver's own type
        # Python's module must not begin transactions by itself: ``SqliteDriver`` does.
        dbapi.isolation_level = None
        cursor = dbapi.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        # FULL: "written before the call" has to survive a power cut too, not only a killed process.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA busy_timeout = 5000")
        cursor.close()
        place_driver(record.info, SqliteDriver(dbapi))

    return engine


@contextmanager
def foreign_keys_off(connection: Connection) -> Iterator[None]:
    """Have SQLite not enforce foreign keys: tables that are built anew have rows that point to them.

    Within a transaction it has no effect. Elsewhere it does nothing.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys = ON")


class SqliteDriver:
    """The connection of the standard library's module."""

    dialect: Dialect = sqlite.dialect()

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._readers: dict[str, list[tuple[int, Callable[[int], Any]]]] = {}

    def begin(self, *, writes: bool) -> None:
        """Begin a transaction; one that writes takes the write lock at once."""
        self._connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def commit(self) -> None:
        """Commit it."""
        self._connection.execute("COMMIT")

    @property
    def under_way(self) -> bool:
        """True within a transaction: some errors end it, and SQLite has rolled it back then."""
        return self._connection.in_transaction

    def savepoint(self) -> None:
        """Begin what can be rolled back by itself."""
        self._connection.execute("SAVEPOINT member")

    def release(self) -> None:
        """Let what was done since the savepoint be part of the transaction."""
        self._connection.execute("RELEASE member")

    def roll_back(self) -> None:
        """Undo what was done since the savepoint."""
        self._connection.execute("ROLLBACK TO member")
        self._connection.execute("RELEASE member")

    def run(self, sql: str, values: Sequence[object], columns: Sequence[Column]) -> Answer:
        """Return the rows as Python values, and how many rows were changed."""
        cursor = self._connection.execute(
            sql, [microseconds(value) if isinstance(value, datetime) else value for value in values]
        )
        if not columns:
            return [], cursor.rowcount
        readers = self._readers.get(sql)
        if readers is None:
            readers = self._readers[sql] = [
                (place, read)
                for place, column in enumerate(columns)
                if (read := _reader(column.kind)) is not None
            ]
        rows = [list(row) for row in cursor.fetchall()]
        for row in rows:
            for place, read in readers:
                if row[place] is not None:
                    row[place] = read(row[place])
        return rows, cursor.rowcount

    def ask(self, sql: str, values: Sequence[object], columns: Sequence[Column]) -> Answer:
        """Run it now: there is nobody to wait for."""
        return self.run(sql, values, columns)

    def run_later(self, sql: str, values: Sequence[object]) -> None:
        """Run it now, as above."""
        self.run(sql, values, ())


def _instant(number: int) -> datetime:
    return EPOCH + timedelta(microseconds=number)


def _reader(kind: object) -> Callable[[int], Any] | None:
    if isinstance(kind, Instant):
        return _instant
    return bool if isinstance(kind, Boolean) else None
