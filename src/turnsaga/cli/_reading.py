"""Reads a ledger without touching it: no schema is built, no file is made, nothing waits for long."""

import asyncio
import sqlite3
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from turnsaga.errors import StoreError

__all__ = ["LedgerReader", "LedgerUnreadable"]

P = ParamSpec("P")
T = TypeVar("T")

_CONNECT_S: Final = 3
_STATEMENT_MS: Final = 5000


class LedgerUnreadable(StoreError):
    """The ledger can't be read; ``remedy`` says what to do."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        super().__init__(f"the ledger at {where!r} can't be read ({reason}); {remedy}")
        self.where = where
        self.reason = reason
        self.remedy = remedy


class LedgerReader:
    """Asks questions of the ledger at a URL, each in a read-only transaction of a connection of its own."""

    def __init__(self, url: str) -> None:
        """Open nothing yet.

        Raises:
            LedgerUnreadable: not a URL of a database that a ledger can live in.
        """
        remedy = "set TURNSAGA_DATABASE to sqlite:////path/ledger.db or postgresql://host/name"
        try:
            self._url: URL = make_url(url)
            self.kind = self._url.get_backend_name()
        except (ArgumentError, NoSuchModuleError):
            raise LedgerUnreadable("", "not a database URL", remedy) from None
        if self.kind not in {"sqlite", "postgresql"}:
            raise LedgerUnreadable(self.where, f"{self.kind!r} isn't supported", remedy)

    @property
    def where(self) -> str:
        """The database's address without its password."""
        return self._url.render_as_string(hide_password=True)

    async def ask(
        self, question: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return a question's answer.

        Raises:
            LedgerUnreadable: there is no such database, it doesn't answer in time, or has no such table.
        """
        return await asyncio.to_thread(self._ask, lambda connection: question(connection, *args, **kwargs))

    def _ask(self, question: Callable[[Connection], T]) -> T:
        try:
            with self._engine().connect() as connection, connection.begin():
                if self.kind == "postgresql":
                    connection.execute(text(f"SET LOCAL statement_timeout = {_STATEMENT_MS}"))
                return question(connection)
        except (DBAPIError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            reason = str(cause).strip().split("\n")[0]
            raise LedgerUnreadable(self.where, reason, "see that TURNSAGA_DATABASE is right") from error

    def _engine(self) -> Engine:
        if self.kind == "sqlite":
            return create_engine("sqlite://", creator=self._sqlite, poolclass=NullPool)
        if find_spec("psycopg") is None:
            raise LedgerUnreadable(
                self.where, "Postgres's driver isn't installed", "pip install 'turnsaga[postgres]'"
            )
        return create_engine(
            self._url.set(drivername="postgresql+psycopg"),
            poolclass=NullPool,
            connect_args={"connect_timeout": _CONNECT_S, "application_name": "turnsaga-cli"},
            execution_options={"postgresql_readonly": True},
        )

    def _sqlite(self) -> sqlite3.Connection:
        path = Path(self._url.database or "").absolute()
        if not path.is_file():
            raise LedgerUnreadable(
                self.where, "there is no such file", "start a worker, which makes it, or name another"
            )
        return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_CONNECT_S)
