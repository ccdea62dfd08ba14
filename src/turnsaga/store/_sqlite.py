"""SQLite as the ledger's database: one connection, one thread, the write lock taken at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, RootTransaction, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import StaticPool

__all__ = ["sqlite_engine", "sqlite_transaction"]


def sqlite_engine(url: URL) -> Engine:
    """Return an engine whose writing transactions hold the write lock from their first statement.

    A deferred transaction that reads first and is then refused the lock would have to be run again.
    """
    engine = create_engine(
        url, poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 5.0}
    )

    @event.listens_for(engine, "connect")
    def configure(dbapi: Any, _record: object) -> None:  # noqa: ANN401  # the driver's own type
        # The driver must not begin transactions by itself: ``sqlite_transaction`` does.
        dbapi.isolation_level = None
        cursor = dbapi.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        # FULL: "written before the call" has to survive a power cut too, not only a killed process.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA busy_timeout = 5000")
        cursor.close()

    return engine


@contextmanager
def sqlite_transaction(connection: Connection, purpose: str) -> Iterator[RootTransaction]:
    """Begin a transaction as its purpose wants it: one that writes takes the lock at once.

    It is begun by the driver itself, since an engine that has a listener for it looks for more of them at
    every statement.
    """
    driver: Any = connection.connection.driver_connection
    if purpose == "migrate":
        # Tables that are built anew have rows that point to them; within a transaction it has no effect.
        driver.execute("PRAGMA foreign_keys = OFF")
    try:
        with connection.begin() as transaction:
            driver.execute("BEGIN" if purpose == "read" else "BEGIN IMMEDIATE")
            yield transaction
    finally:
        if purpose == "migrate":
            driver.execute("PRAGMA foreign_keys = ON")
