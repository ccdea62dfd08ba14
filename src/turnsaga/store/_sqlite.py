"""SQLite as the ledger's database: one connection, one thread, the write lock taken at once."""

from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import StaticPool

__all__ = ["sqlite_engine"]


def sqlite_engine(url: URL) -> Engine:
    """Return an engine whose writing transactions hold the write lock from their first statement.

    A deferred transaction that reads first and is then refused the lock would have to be run again.
    """
    engine = create_engine(
        url, poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 5.0}
    )

    @event.listens_for(engine, "connect")
    def configure(dbapi: Any, _record: object) -> None:  # noqa: ANN401  # the driver's own type
        # The driver must not begin transactions by itself: "begin" below does.
        dbapi.isolation_level = None
        cursor = dbapi.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        # FULL: "written before the call" has to survive a power cut too, not only a killed process.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA busy_timeout = 5000")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        purpose = connection.get_execution_options().get("turnsaga_purpose", "write")
        if purpose == "read":
            connection.exec_driver_sql("BEGIN")
            return
        # Said before each transaction: within one it has no effect, and not all want the same.
        connection.exec_driver_sql(f"PRAGMA foreign_keys = {'OFF' if purpose == 'migrate' else 'ON'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
