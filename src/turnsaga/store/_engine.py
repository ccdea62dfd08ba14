"""The database behind the ledger: one transaction a hop to a thread, never torn by a cancellation."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, Final, ParamSpec, TypeVar

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from turnsaga.errors import InvalidRequest, StoreUnavailable
from turnsaga.store._news import News
from turnsaga.store._postgres import EventListener, postgres_engine
from turnsaga.store._sqlite import sqlite_engine
from turnsaga.store._unit import flush, forget

__all__ = ["Database"]

P = ParamSpec("P")
T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_POLL_S: Final = 0.05
_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5)


class Database:
    """Runs functions of a connection as whole transactions on a thread of its own.

    On SQLite there is one connection and one thread; on Postgres a pool, and a thread a connection. A
    transaction that the database refuses (locked, away, a deadlock) is run again from its beginning.
    """

    def __init__(self, url: str, *, connections: int) -> None:
        """Open nothing yet; the first transaction does. ``connections`` bounds the pool on Postgres.

        Raises:
            InvalidRequest: not a URL of a database that the ledger can live in.
        """
        try:
            self._url: URL = make_url(url)
        except ArgumentError as error:
            raise InvalidRequest("database", f"not a database URL ({error})") from None
        backend = self._url.get_backend_name()
        if backend not in {"sqlite", "postgresql"}:
            raise InvalidRequest(
                "database",
                f"{backend!r} isn't supported; use sqlite:////path/ledger.db or postgresql://host/name",
            )
        self._is_sqlite = backend == "sqlite"
        self.engine: Engine = (
            sqlite_engine(self._url)
            if self._is_sqlite
            else postgres_engine(self._url, connections=connections)
        )
        self._threads = ThreadPoolExecutor(1 if self._is_sqlite else connections, thread_name_prefix="ledger")
        self._news = News()
        self._listener: EventListener | None = None

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
                    # A connection is used again: what a transaction before had gathered isn't ours.
                    forget(connection)
                    result = work(connection)
                    flush(connection)
                    return result
            except IntegrityError:
                # Two transactions inserted the same row; run again, this one finds the other's.
                if pause is None:
                    raise
            except (OperationalError, sqlite3.OperationalError, PoolTimeout) as error:
                # Serialization failures and deadlocks of Postgres come here too: the same remedy.
                reason = str(error.orig if isinstance(error, DBAPIError) else error).split("\n")[0]
                if pause is None:
                    raise StoreUnavailable(self.where, reason) from error
                _log.warning("ledger.unavailable", where=self.where, reason=reason, again_in=pause)
                if self._is_sqlite:
                    self.engine.dispose()
                time.sleep(pause)
        raise AssertionError  # the loop returns or raises

    async def news_of(self, turn: str, *, within_s: float) -> None:
        """Return when the turn has a new event, or when the time is over.

        Postgres tells; SQLite can't, so there it is a short wait.
        """
        if self._is_sqlite:
            await asyncio.sleep(min(within_s, _POLL_S))
            return
        if self._listener is None:
            loop = asyncio.get_running_loop()
            self._listener = EventListener(self._url, lambda heard: self._news.tell(loop, heard))
            self._listener.start()
        await self._news.wait(turn, within_s)

    async def close(self) -> None:
        """Wait for what is under way, then let the connections go."""
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            await loop.run_in_executor(None, self._listener.stop)
        await loop.run_in_executor(self._threads, self.engine.dispose)
        self._threads.shutdown(wait=True)
