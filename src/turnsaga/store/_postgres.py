"""Postgres as the ledger's database: a bounded pool, and a connection that hears of new events.

Transactions are READ COMMITTED: each begins with an UPDATE of its turn's row, and what spans turns takes
an advisory lock, so nothing rests on a stricter isolation.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import structlog
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.pool import ConnectionPoolEntry

from turnsaga.errors import InvalidRequest
from turnsaga.keys import digest
from turnsaga.store._prepared import driver_of, place_driver

if TYPE_CHECKING:
    from turnsaga.store._libpq import PostgresDriver

__all__ = [
    "EventListener",
    "lock_names",
    "notify",
    "postgres_engine",
    "read_whole_tables",
    "transaction_fate",
    "transaction_name",
]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_CHANNEL: Final = "turnsaga_events"
_PAUSE_S: Final = 1.0
_WAKE_S: Final = 0.5
_LOCK: Final = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
_WHOLE: Final = text("SET LOCAL enable_seqscan = on")
_WHICH: Final = text("SELECT pg_current_xact_id_if_assigned()::text")
_NAME: Final = text("SELECT pg_current_xact_id()::text")
_FATE: Final = text("SELECT pg_xact_status(CAST(:name AS xid8))")
_CONNECTING: Final[Mapping[str, str | int]] = {
    "application_name": "turnsaga",
    "connect_timeout": 5,
    # A server that is gone without a word is noticed within 15 s, whether we send or wait.
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
}
# Only where neither the URL nor the role nor the server sets a limit: theirs is somebody's decision.
_LIMITS: Final = """
    SELECT set_config(name, value, false)
    FROM (VALUES ('lock_timeout', '5s'),
                 ('statement_timeout', '30s'),
                 ('idle_in_transaction_session_timeout', '60s')) AS limits (name, value)
    WHERE current_setting(name) = '0'
"""
# A prepared statement's plan outlives the table of one page for which reading it all was the best of plans.
# All that is asked again and again is answered from an index. What can't be costs 10^10 then, up to Postgres
# 17, and a plan of that cost would be compiled each time.
_PLANNING: Final = "SET enable_seqscan = off; SET jit = off"


def postgres_engine(url: URL, *, connections: int) -> Engine:
    """Return an engine of at most so many connections; one that died is noticed as it is used.

    Asking each whether it lives would cost a round trip a transaction; a transaction that meets a dead one
    is run again anyway.

    Waits for locks and statements are bounded, unless the URL, the role or the server sets other bounds.

    Raises:
        InvalidRequest: the driver isn't installed.
    """
    if find_spec("psycopg") is None:
        raise InvalidRequest("database", "Postgres needs its driver: pip install 'turnsaga[postgres]'")
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=connections,
        max_overflow=0,
        pool_timeout=10,
        isolation_level="READ COMMITTED",
        connect_args=_connecting(url),
    )

    from turnsaga.store._libpq import PostgresDriver  # noqa: PLC0415  # its driver is an extra

    @event.listens_for(engine, "connect")
    def limit(dbapi: Any, record: ConnectionPoolEntry) -> None:  # noqa: ANN401  # the driver's own type
        dbapi.execute(_LIMITS)
        dbapi.execute(_PLANNING)
        dbapi.commit()
        place_driver(record.info, PostgresDriver(dbapi))

    @event.listens_for(engine, "before_cursor_execute")
    def in_order(connection: Connection, *_: object) -> None:
        # What SQLAlchemy runs itself comes after what was asked before, a turn's row above all.
        if (driver := _driver(connection)) is not None:
            driver.send_asked()

    return engine


def lock_names(connection: Connection, names: Sequence[str]) -> None:
    """Hold these names until the transaction ends; on SQLite the write lock holds everything already.

    Always in the same order, so that two transactions can't wait for each other.
    """
    if connection.dialect.name != "postgresql":
        return
    for name in sorted(set(names)):
        connection.execute(_LOCK, {"name": digest(name)})


def read_whole_tables(connection: Connection) -> None:
    """Let this transaction read tables as they lie: it alters them, or fills what is new in each row."""
    if connection.dialect.name == "postgresql":
        connection.execute(_WHOLE)


def notify(connection: Connection, turn: str) -> None:
    """Tell followers, at this transaction's end, that the turn has a new event."""
    if (driver := _driver(connection)) is not None:
        driver.notify(_CHANNEL, turn)


def transaction_name(connection: Connection) -> str | None:
    """Return by what the server can be asked about this transaction; None if it has written nothing."""
    driver = _driver(connection)
    if driver is None:
        return None
    # What waits for the COMMIT hasn't been written yet, and will be.
    name: str | None = driver.transaction or connection.scalar(_NAME if driver.waits else _WHICH)
    return name


def _driver(connection: Connection) -> "PostgresDriver | None":
    if connection.dialect.name != "postgresql":
        return None
    driver: Any = driver_of(connection)
    found: PostgresDriver = driver
    return found


def transaction_fate(connection: Connection, name: str) -> str | None:
    """Return ``committed``, ``aborted`` or ``in progress``; None if the server doesn't know it any more.

    Source: https://www.postgresql.org/docs/current/functions-info.html (``pg_xact_status``), which is made
    for a connection that is lost while a COMMIT is under way.
    """
    fate: str | None = connection.scalar(_FATE, {"name": name})
    return fate


def _connecting(url: URL) -> dict[str, str | int]:
    return {name: value for name, value in _CONNECTING.items() if name not in url.query}


class EventListener:
    """Hears of new events on a connection of its own, in a thread, and tells ``heard`` the turn.

    A connection that breaks is opened again; ``heard`` is then told "", since anything may have been
    missed meanwhile.
    """

    def __init__(self, url: URL, heard: Callable[[str], None]) -> None:
        self._conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._connecting: dict[str, Any] = _connecting(url)
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
                with psycopg.connect(self._conninfo, autocommit=True, **self._connecting) as connection:
                    connection.execute(f"LISTEN {_CHANNEL}")
                    self._heard("")
                    while not self._stop.is_set():
                        for notice in connection.notifies(timeout=_WAKE_S):
                            self._heard(notice.payload)
            except psycopg.Error as error:
                _log.warning("ledger.events_unheard", reason=type(error).__name__)
                self._stop.wait(_PAUSE_S)
