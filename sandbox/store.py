"""The SQLite file that holds vendors' objects, idempotency keys and the truth."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from sandbox.errors import CannotStart

T = TypeVar("T")

# Each step brings a file of the version before it to its own. Those that stand here stay as they are: files
# of every version go on.
_STEPS = (
    """
CREATE TABLE calls (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    system TEXT NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    op TEXT NOT NULL,
    identity TEXT,
    key TEXT,
    at REAL NOT NULL,
    applied_at REAL,
    status INTEGER,
    answered INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE effects (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    system TEXT NOT NULL,
    identity TEXT NOT NULL,
    key TEXT,
    ref TEXT NOT NULL,
    at REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'standing' CHECK (state IN ('standing', 'undone', 'wiped'))
);
CREATE INDEX effects_by_identity ON effects (system, identity);
CREATE TABLE idempotency_keys (
    system TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    at REAL NOT NULL,
    status INTEGER NOT NULL,
    body TEXT NOT NULL,
    headers TEXT NOT NULL,
    PRIMARY KEY (system, key)
);
CREATE TABLE charges (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    identity TEXT NOT NULL,
    customer TEXT NOT NULL,
    applied_at REAL NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX charges_by_identity ON charges (identity);
CREATE TABLE charge_metadata (
    charge TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name, value, charge)
);
CREATE TABLE refunds (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    charge TEXT NOT NULL,
    applied_at REAL NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX refunds_by_charge ON refunds (charge);
CREATE TABLE record_log (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    op TEXT NOT NULL,
    key TEXT,
    at REAL NOT NULL,
    fields TEXT NOT NULL,
    created_by TEXT,
    updated_by TEXT
);
CREATE INDEX record_log_by_record ON record_log (kind, id, seq);
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    sender TEXT NOT NULL,
    recipients TEXT NOT NULL,
    subject TEXT NOT NULL,
    identity TEXT NOT NULL,
    key TEXT,
    at REAL NOT NULL
);
""",
    """
CREATE TABLE posts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    channel TEXT NOT NULL,
    text TEXT NOT NULL,
    identity TEXT NOT NULL,
    key TEXT,
    at REAL NOT NULL
);
CREATE INDEX posts_by_identity ON posts (identity);
""",
)


class Store:
    """One connection, used by one thread of its own: the event loop never waits for a disk.

    Work is run in the order in which it was handed over. A commit is on disk when it
    returns (``synchronous=FULL``), so what was applied survives SIGKILL.
    """

    def __init__(self, path: Path, *, seed: Callable[[sqlite3.Connection], None]) -> None:
        self._path = path
        self._seed = seed
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-store")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open the file, and lay out and seed it where it is new; bring an older one up to date.

        Raises:
            CannotStart: the file can't be opened or isn't the sandbox's.
        """
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._connect)
        except sqlite3.Error as error:
            await self.close()
            raise CannotStart("SANDBOX_DATABASE", self._path, str(error)) from error

    async def close(self) -> None:
        """Finish the work that was handed over and close the file."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what ``work`` returns, after its transaction is committed.

        The work is handed over before this first suspends, and is finished even if the
        caller is cancelled.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)

    def _connect(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        self._connection = connection
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == len(_STEPS):
            return
        is_empty = connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        if not 0 <= version < len(_STEPS) or (version == 0 and not is_empty):
            raise sqlite3.DatabaseError("it holds something else than this version's state")
        self._transact(partial(self._lay_out, version=version))

    def _lay_out(self, db: sqlite3.Connection, version: int) -> None:
        # Not executescript: that one commits first, and a half laid out file would stay.
        for step in _STEPS[version:]:
            for statement in step.split(";\n"):
                db.execute(statement)
        if version == 0:
            self._seed(db)
        db.execute(f"PRAGMA user_version={len(_STEPS)}")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        db = self._connection
        if db is None:
            raise sqlite3.ProgrammingError("the store isn't open")
        db.execute("BEGIN IMMEDIATE")
        try:
            result = work(db)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        return result
