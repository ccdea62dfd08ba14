"""The ledger's schema, version by version. ``migrate`` brings a database to the newest one."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from turnsaga.store._postgres import lock_names

__all__ = ["HEAD", "current_revision", "migrate"]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    # Alembic splits version locations by this; without it a path with a colon is read as two.
    config.set_main_option("path_separator", "os")
    return config


HEAD = ScriptDirectory.from_config(_config()).get_current_head()
"""The revision that this version of the library works with."""


def current_revision(connection: Connection) -> str | None:
    """Return the revision that a database is at; None for an empty one."""
    return MigrationContext.configure(connection).get_current_revision()


def migrate(connection: Connection) -> None:
    """Bring the database to the newest revision, inside the caller's transaction."""
    # Several processes may start at once; the first one builds, the others find it built.
    lock_names(connection, ["migrate"])
    if current_revision(connection) == HEAD:
        return
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
