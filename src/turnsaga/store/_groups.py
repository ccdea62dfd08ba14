"""Transactions that wait for SQLite's one connection share a COMMIT: each is a savepoint of it.

A COMMIT waits for the disk, which takes longer than most transactions' own work. So a transaction that is
about to commit takes along what waits behind it, as a group commit of a database server does. Nobody is
answered before the COMMIT: what one of them read may have been written by another.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from turnsaga.store._sqlite import SqliteDriver
from turnsaga.store._threads import Job, Threads
from turnsaga.store._unit import flush, forget

__all__ = ["Group", "GroupLost", "Purpose", "Transaction"]

T = TypeVar("T")
Purpose: TypeAlias = Literal["read", "write", "migrate"]

_MOST: Final = 32


class GroupLost(Exception):  # caught by the engine, which runs the transaction again
    """What one member did ended the transaction of all: the database has rolled it back."""


@dataclass(frozen=True)
class Transaction(Generic[T]):
    """One transaction as it waits for its connection; called, it is run from its beginning to its end."""

    purpose: Purpose
    work: Callable[[Connection], T]
    give_up: float
    run: Callable[["Transaction[T]"], T]

    def __call__(self) -> T:
        return self.run(self)

    @property
    def late(self) -> bool:
        """True once it has waited too long to be begun; ``give_up`` is an instant of the monotonic clock."""
        return time.monotonic() > self.give_up


class Group:
    """What a transaction takes along. It is used on the thread that runs that one."""

    def __init__(self, connection: Connection, driver: SqliteDriver, threads: Threads) -> None:
        self._connection = connection
        self._driver = driver
        self._threads = threads
        self._members: list[tuple[Job[Any], Callable[[], None]]] = []
        self._alone: list[Job[Any]] = []

    def gather(self) -> None:
        """Run what waits, each in a savepoint; at most so much that nobody waits long for the lock.

        Raises:
            GroupLost: nothing of the transaction is left. All that was taken is run again, one by one.
        """
        while len(self._members) + len(self._alone) < _MOST:
            job = self._threads.take()
            if job is None:
                return
            # The ledger's threads are handed nothing else.
            transaction = cast("Transaction[Any]", job.work)
            if transaction.purpose == "migrate":
                self._alone.append(job)
                return
            if transaction.late:
                self._alone.append(job)
                continue
            self._join(job, transaction)

    def _join(self, job: Job[Any], transaction: Transaction[Any]) -> None:
        driver, connection = self._driver, self._connection
        try:
            driver.savepoint()
            result = job.context.run(transaction.work, connection)
            flush(connection)
            driver.release()
        except (DBAPIError, connection.dialect.loaded_dbapi.Error) as error:
            # It is for the one who runs it by itself to say whether it is run again.
            self._alone.append(job)
            self._back(error)
        except BaseException as error:  # noqa: BLE001  # it is raised where it is awaited
            refused = error
            self._members.append((job, lambda: job.fail(refused)))
            self._back(error)
        else:
            self._members.append((job, lambda: job.tell(result)))

    def _back(self, error: BaseException) -> None:
        forget(self._connection)
        if not self._driver.under_way:
            raise GroupLost from error
        self._driver.roll_back()

    def committed(self) -> None:
        """Tell everybody what came of theirs; what has to be run by itself is next."""
        for _, tell in self._members:
            tell()
        self._threads.give_back(self._alone)

    def lost(self) -> None:
        """Have all that was taken run again."""
        self._threads.give_back([*(job for job, _ in self._members), *self._alone])
