"""The ledger's schema, version by version. ``migrate`` brings a database to the newest one."""

import os
import threading
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from turnsaga.errors import StoreUnusable
from turnsaga.store._postgres import lock_names

__all__ = ["HEAD", "current_revision", "migrate"]

_HERE: Final = Path(__file__).parent
_VERSIONS: tuple[Path, ...] = (_HERE / "versions",)
# Alembic's `op` and `context` belong to the process, not to a connection: of two upgrades at once one would
# run its statements on the other's.
_ONE_AT_A_TIME: Final = threading.Lock()


def _config() -> Config:
    config = Config()
    # Alembic splits version locations by this; without it a path with a colon is read as two.
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", _plain(str(_HERE)))
    config.set_main_option("version_locations", _plain(os.pathsep.join(map(str, _VERSIONS))))
    return config


def _plain(value: str) -> str:
    # The option is read as a template, in which a percent sign begins a reference.
    return value.replace("%", "%%")


HEAD = ScriptDirectory.from_config(_config()).get_current_head()
"""The revision that this version of the library works with."""


def current_revision(connection: Connection) -> str | None:
    """Return the revision that a database is at; None for an empty one."""
    return MigrationContext.configure(connection).get_current_revision()


def migrate(connection: Connection) -> None:
    """Bring the database to the newest revision, inside the caller's transaction.

    On SQLite foreign keys must not be enforced in it: a table that others refer to is altered by dropping
    it for a copy. What is left is checked here.

    Raises:
        StoreUnusable: it is of a newer version, or the rows don't fit together afterwards.
    """
    # Several processes may start at once; the first one builds, the others find it built.
    lock_names(connection, ["migrate"])
    revision = current_revision(connection)
    if revision == HEAD:
        return
    config = _config()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise _unusable(
            connection,
            f"it is at revision {revision!r} and this version knows them up to {HEAD!r}; "
            "run the newer version that wrote it",
        )
    is_sqlite = connection.dialect.name == "sqlite"
    if not is_sqlite:
        # Copying a large table takes as long as it takes.
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    config.attributes["connection"] = connection
    # Taken after the database's own lock, so that nobody who waits for that one holds this one.
    with _ONE_AT_A_TIME:
        command.upgrade(config, "head")
    if is_sqlite:
        lost = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if lost is not None:
            child, _, parent, *_ = lost
            raise _unusable(
                connection,
                f"rows of {child!r} refer to rows of {parent!r} that it has lost; nothing was changed",
            )


def _unusable(connection: Connection, reason: str) -> StoreUnusable:
    return StoreUnusable(connection.engine.url.render_as_string(hide_password=True), reason)
