"""The database behind the ledger: one transaction a hop to a thread, never torn by a cancellation."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.pool import StaticPool

from turnsaga.errors import InvalidRequest, StoreUnavailable

__all__ = ["Database"]

P = ParamSpec("P")
T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5)


class Database:
    """Runs functions of a connection as whole transactions on a thread of its own.

    On SQLite there is one connection and one thread, and a transaction that writes takes the write lock
    when it begins: one that reads first and is then refused the lock would have to be run again.
    """

    def __init__(self, url: str) -> None:
        """Open nothing yet; the first transaction does.

        Raises:
            InvalidRequest: not a URL of a database that the ledger can live in.
        """
        try:
            self._url: URL = make_url(url)
        except ArgumentError as error:
            raise InvalidRequest("database", f"not a database URL ({error})") from None
        if self._url.get_backend_name() != "sqlite":
            raise InvalidRequest(
                "database", f"{self._url.get_backend_name()!r} isn't supported; use sqlite:////path/ledger.db"
            )
        self.engine: Engine = _sqlite(self._url)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    @property
    def where(self) -> str:
        """The database's address without its password."""
        return self._url.render_as_string(hide_password=True)

    async def write(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``work`` as one transaction; the caller's cancellation leaves it whole.

        Raises:
            StoreUnavailable: the database didn't answer for some seconds; nothing was written.
        """
        return await self._on_thread(False, lambda connection: work(connection, *args, **kwargs))

    async def read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As ``write``, for work that only reads: it takes no lock."""
        return await self._on_thread(True, lambda connection: work(connection, *args, **kwargs))

    async def _on_thread(self, reading: bool, work: Callable[[Connection], T]) -> T:  # noqa: FBT001
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, self._transact, reading, work)
        # If its caller is gone by then, nobody else looks at the error.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(answer)

    def _transact(self, reading: bool, work: Callable[[Connection], T]) -> T:  # noqa: FBT001
        for pause in (*_PAUSES, None):
            try:
                connection = self.engine.connect().execution_options(turnsaga_reads=reading)
                with connection, connection.begin():
                    return work(connection)
            except (OperationalError, sqlite3.OperationalError) as error:
                reason = str(error.orig if isinstance(error, DBAPIError) else error)
                if pause is None:
                    raise StoreUnavailable(self.where, reason) from error
                _log.warning("ledger.unavailable", where=self.where, reason=reason, again_in=pause)
                self.engine.dispose()
                time.sleep(pause)
        raise AssertionError  # the loop returns or raises

    async def close(self) -> None:
        """Wait for what is under way, then let the connection go."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self.engine.dispose)
        self._threads.shutdown(wait=True)


def _sqlite(url: URL) -> Engine:
    engine = create_engine(
        url, poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 5.0}
    )

    @event.listens_for(engine, "connect")
    def configure(dbapi: Any, _record: object) -> None:  # noqa: ANN401
        # The driver must not begin transactions by itself: "begin" below does.
        dbapi.isolation_level = None
        cursor = dbapi.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        # FULL: "written before the call" has to survive a power cut too, not only a killed process.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA busy_timeout = 5000")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get("turnsaga_reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
