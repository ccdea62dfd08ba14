"""The database behind the ledger: one transaction a hop to a thread, never torn by a cancellation."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from turnsaga.errors import InvalidRequest, StoreBusy, StoreUnavailable
from turnsaga.store._groups import Group, GroupLost, Purpose, Transaction
from turnsaga.store._news import News
from turnsaga.store._postgres import (
    EventListener,
    postgres_engine,
    read_whole_tables,
    transaction_fate,
    transaction_name,
)
from turnsaga.store._prepared import commit, driver_of
from turnsaga.store._sqlite import SqliteDriver, foreign_keys_off, sqlite_engine
from turnsaga.store._statistics import Growth, analyze_grown
from turnsaga.store._threads import Threads
from turnsaga.store._unit import flush, forget

__all__ = ["Database"]

P = ParamSpec("P")
T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_POLL_S: Final = 0.05
_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5)
# Nobody else can tell what became of a transaction, so a server that restarts is waited for.
_ASKING: Final = (*_PAUSES, 2.0, 2.0, 2.0, 2.0)
_QUEUE_S: Final = 10.0
_RANDOM: Final = SystemRandom()
_COLLIDED: Final = "ask again, which is safe; if it goes on, pg_stat_activity shows what it collides with"
_LOCKED: Final = "end what holds the lock; pg_stat_activity and pg_locks show it"
_REMEDIES: Final[Mapping[str, str]] = {
    "40001": _COLLIDED,
    "40P01": _COLLIDED,
    "55P03": _LOCKED,
    "57014": _LOCKED,
    "53300": "raise max_connections, or give each process fewer connections",
    "SQLITE_BUSY": "end what else writes to the file, or keep the ledger on Postgres",
}
"""What to do about what the database says, by SQLSTATE or by SQLite's name of it."""


class _CommitLost(Exception):  # caught a few lines below
    """The connection was lost at COMMIT: what was done may be in force or not."""

    def __init__(self, name: str, result: object, error: Exception) -> None:
        super().__init__(name)
        self.name = name
        self.result = result
        self.error = error


class Database:
    """Runs functions of a connection as whole transactions on a thread of its own.

    On SQLite there is one connection and one thread, and what waits for it shares a COMMIT; on Postgres a
    pool, and a thread a connection. A transaction that the database refuses (locked, away, a deadlock) is
    run again from its beginning, and one whose COMMIT got no answer is asked about first. All of that is
    bounded.
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
        self._connections = 1 if self._is_sqlite else connections
        self._threads = Threads(self._connections, name="ledger")
        self._kept: dict[int, Connection] = {}
        self._news = News()
        self._listener: EventListener | None = None
        self._growth = Growth()
        self._looking: asyncio.Task[None] | None = None

    @property
    def where(self) -> str:
        """The database's address without its password."""
        return self._url.render_as_string(hide_password=True)

    async def write(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``work`` as one transaction; the caller's cancellation leaves it whole.

        Raises:
            StoreUnavailable: the database didn't answer for some seconds. Nothing was written, unless the
                answer to its COMMIT is what was lost: then it may be.
        """
        written = await self._on_thread("write", lambda connection: work(connection, *args, **kwargs))
        if not self._is_sqlite and self._growth.is_due():
            self._looking = asyncio.create_task(self._analyze())
        return written

    async def read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As ``write``, for work that only reads: it takes no lock."""
        return await self._on_thread("read", lambda connection: work(connection, *args, **kwargs))

    async def migrate(self, work: Callable[[Connection], None]) -> None:
        """As ``write``, for work that alters tables: on SQLite foreign keys aren't enforced meanwhile."""
        await self._on_thread("migrate", work)

    async def _analyze(self) -> None:
        """Have tables that have grown looked at; nobody waits for it."""
        try:
            tables = await self._on_thread("write", analyze_grown)
        except Exception as error:  # noqa: BLE001  # whatever it is, the ledger works without
            _log.warning("ledger.not_analyzed", where=self.where, reason=type(error).__name__)
        else:
            _log.info("ledger.analyzed", where=self.where, tables=tables)

    async def _on_thread(self, purpose: Purpose, work: Callable[[Connection], T]) -> T:
        # A caller that is cancelled meanwhile ends its wait, not the transaction.
        return await self._threads.run(
            Transaction(purpose, work, time.monotonic() + _QUEUE_S, self._transact)
        )

    def _transact(self, transaction: Transaction[T]) -> T:
        if transaction.late:
            # Its caller has waited as long as for a database that is away; more would have no bound.
            raise StoreBusy(
                self.where,
                f"none of {self._connections} connections was free for {_QUEUE_S:g} s",
                "look for transactions that hang, or give the store more connections",
            )
        pauses = iter(_PAUSES)
        lost: _CommitLost | None = None
        alone = False
        while True:
            error: Exception
            try:
                if lost is None:
                    return self._attempt(transaction, alone=alone)
                # Run again without asking, what had been committed would be applied twice: an attempt,
                # say, would find its own claim and take it for another one's.
                fate = self._fate(lost.name)
                if fate == "committed":
                    return cast("T", lost.result)
                if fate == "aborted":
                    lost = None
                    continue
                error = lost.error
            except GroupLost:
                alone = True
                continue
            except _CommitLost as unanswered:
                lost, error, pauses = unanswered, unanswered.error, iter(_ASKING)
            except (IntegrityError, OperationalError, sqlite3.OperationalError, PoolTimeout) as refused:
                # Two transactions inserted the same row: run again, this one finds the other's. With a
                # serialization failure or a deadlock of Postgres it is the same remedy.
                error = refused
            pause = next(pauses, None)
            if pause is None:
                raise self._given_up(error, lost) from error
            self._pause(error, pause)

    def _attempt(self, transaction: Transaction[T], *, alone: bool) -> T:
        connection = self._connection()
        try:
            if transaction.purpose == "migrate":
                forget(connection)
                return _altered(connection, transaction.work)
            return self._run(connection, transaction, alone=alone)
        except BaseException:
            # Whatever is wrong with it: the pool looks after it, and the next transaction asks for one.
            self._kept.pop(threading.get_ident()).close()
            raise

    def _connection(self) -> Connection:
        """Return this thread's connection: taking one and giving it back cost as much as its work."""
        mine = threading.get_ident()
        kept = self._kept.get(mine)
        if kept is None:
            kept = self._kept[mine] = self.engine.connect()
        return kept

    def _run(self, connection: Connection, transaction: Transaction[T], *, alone: bool) -> T:
        # A connection is used again: what a transaction before had gathered isn't ours.
        forget(connection)
        driver = driver_of(connection)
        writes = transaction.purpose == "write"
        # By the driver: a transaction of SQLAlchemy's costs more than most of the statements in it.
        driver.begin(writes=writes)
        result = transaction.work(connection)
        flush(connection)
        if not writes:
            commit(connection)
        elif isinstance(driver, SqliteDriver):
            self._commit_together(connection, driver, alone=alone)
        else:
            self._commit(connection, result)
        return result

    def _commit_together(self, connection: Connection, driver: SqliteDriver, *, alone: bool) -> None:
        group = Group(connection, driver, self._threads)
        try:
            if not alone:
                group.gather()
            commit(connection)
        except BaseException:
            group.lost()
            raise
        group.committed()

    def _commit(self, connection: Connection, result: object) -> None:
        name = transaction_name(connection)
        try:
            commit(connection)
        except DBAPIError as error:
            if name is not None and error.connection_invalidated:
                raise _CommitLost(name, result, error) from error
            raise

    def _fate(self, name: str) -> str | None:
        with self.engine.connect() as connection:
            fate = transaction_fate(connection, name)
        _log.info("ledger.commit_asked_about", where=self.where, transaction=name, fate=fate)
        return fate

    def _pause(self, error: Exception, pause: float) -> None:
        _log.warning("ledger.unavailable", where=self.where, reason=_reason(error), again_in=pause)
        if self._is_sqlite:
            self.engine.dispose()
        # Not all at the same instant: those that collided once would collide again.
        time.sleep(pause * _RANDOM.uniform(0.5, 1.0))

    def _given_up(self, error: Exception, lost: "_CommitLost | None") -> Exception:
        if isinstance(error, IntegrityError):
            return error
        reason = _reason(error)
        if lost is not None:
            return StoreUnavailable(self.where, f"a commit got no answer and may be written: {reason}")
        remedy = _REMEDIES.get(_code(error))
        if remedy is None:
            return StoreUnavailable(self.where, reason)
        return StoreBusy(self.where, f"{reason}, {len(_PAUSES) + 1} times", remedy)

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
        if self._listener is not None:
            await asyncio.to_thread(self._listener.stop)
        if self._looking is not None:
            await self._looking
        await self._threads.close()
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()
        self.engine.dispose()


def _altered(connection: Connection, work: Callable[[Connection], T]) -> T:
    # Within a transaction of SQLAlchemy's: outside of one, Alembic would begin and commit its own.
    with foreign_keys_off(connection), connection.begin():
        driver_of(connection).begin(writes=True)
        read_whole_tables(connection)
        return work(connection)


def _reason(error: Exception) -> str:
    return str(error.orig if isinstance(error, DBAPIError) else error).split("\n")[0]


def _code(error: Exception) -> str:
    """Return the SQLSTATE, or SQLite's name of the error."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", ""))
