"""Postgres as the ledger's database: a bounded pool, and a connection that hears of new events.

Transactions are READ COMMITTED: each begins with an UPDATE of its turn's row, and what spans turns takes
an advisory lock, so nothing rests on a stricter isolation.
"""

import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Final

import structlog
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL

from turnsaga.errors import InvalidRequest
from turnsaga.keys import digest

__all__ = ["EventListener", "lock_names", "notify", "postgres_engine"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_CHANNEL: Final = "turnsaga_events"
_PAUSE_S: Final = 1.0
_WAKE_S: Final = 0.5


def postgres_engine(url: URL, *, connections: int) -> Engine:
    """Return an engine of at most so many connections; one that died is noticed before it is used.

    Raises:
        InvalidRequest: the driver isn't installed.
    """
    if find_spec("psycopg") is None:
        raise InvalidRequest("database", "Postgres needs its driver: pip install 'turnsaga[postgres]'")
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=connections,
        max_overflow=0,
        pool_timeout=10,
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
        connect_args={"connect_timeout": 5, "application_name": "turnsaga"},
    )


def lock_names(connection: Connection, names: Sequence[str]) -> None:
    """Hold these names until the transaction ends; on SQLite the write lock holds everything already.

    Always in the same order, so that two transactions can't wait for each other.
    """
    if connection.dialect.name != "postgresql":
        return
    for name in sorted(set(names)):
        connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": digest(name)}
        )


def notify(connection: Connection, turn: str) -> None:
    """Tell followers, at this transaction's end, that the turn has a new event."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_notify(:channel, :turn)"), {"channel": _CHANNEL, "turn": turn})


class EventListener:
    """Hears of new events on a connection of its own, in a thread, and tells ``heard`` the turn.

    A connection that breaks is opened again; ``heard`` is then told "", since anything may have been
    missed meanwhile.
    """

    def __init__(self, url: URL, heard: Callable[[str], None]) -> None:
        self._conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._heard = heard
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="ledger-events", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and wait until the connection is closed."""
        self._stop.set()
        self._thread.join()

    def _listen(self) -> None:
        import psycopg  # noqa: PLC0415  # an extra: who uses SQLite needn't have it

        while not self._stop.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=5) as connection:
                    connection.execute(f"LISTEN {_CHANNEL}")
                    self._heard("")
                    while not self._stop.is_set():
                        for notice in connection.notifies(timeout=_WAKE_S):
                            self._heard(notice.payload)
            except psycopg.Error as error:
                _log.warning("ledger.events_unheard", reason=type(error).__name__)
                self._stop.wait(_PAUSE_S)
