"""A process that opens a ledger: ``python -m tests.store.opener URL [FOLDER OF MORE REVISIONS]``.

It says "ready", waits for a line, opens, and tells as JSON how often it migrated and where the ledger is.
"""

import asyncio
import json
import sys
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from turnsaga.errors import TurnSagaError
from turnsaga.store import SqlStore, migrations


def with_revisions(folder: Path) -> None:
    """Have this process know the revisions in a folder too, as a later version of the library would."""
    migrations._VERSIONS = (*migrations._VERSIONS, folder)
    migrations.HEAD = ScriptDirectory.from_config(migrations._config()).get_current_head()


async def main(url: str, *folders: str) -> None:
    """Open the ledger once told to."""
    upgraded: list[str] = []
    upgrade = command.upgrade

    def counted(config: Config, revision: str, sql: bool = False, tag: str | None = None) -> None:  # noqa: FBT001, FBT002  # Alembic's own
        upgraded.append(revision)
        upgrade(config, revision, sql, tag)

    command.upgrade = counted
    for folder in folders:
        with_revisions(Path(folder))
    store = SqlStore(url, connections=1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    try:
        await store.open(patience_s=30)
    except TurnSagaError as error:
        sys.stdout.write(json.dumps({"refused": str(error)}) + "\n")
    else:
        sys.stdout.write(json.dumps({"upgraded": upgraded, "head": migrations.HEAD}) + "\n")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
