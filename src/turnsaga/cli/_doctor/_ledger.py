"""What is asked of the ledger's database. The functions that judge are pure."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from alembic.script import ScriptDirectory

from turnsaga.cli._doctor._clocks import Reading, judge_ahead, judge_reading
from turnsaga.cli._doctor._running import Unasked
from turnsaga.cli._questions import newest_instant, server, server_time
from turnsaga.cli._reading import LedgerReader, LedgerUnreadable
from turnsaga.deployment import Check, Finding
from turnsaga.store import migrations
from turnsaga.store.migrations import HEAD, current_revision

__all__ = ["LedgerChecks", "judge_schema", "judge_server"]

# SQLite: RETURNING. Postgres: the oldest that its own project still mends.
# Source: https://www.sqlite.org/lang_returning.html, https://www.postgresql.org/support/versioning/
_OLDEST: Final = {"sqlite": (3, 35), "postgresql": (14,)}
_NAMES: Final = {"sqlite": "SQLite", "postgresql": "Postgres"}


class LedgerChecks:
    """Checks of the ledger at a URL."""

    def __init__(self, url: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._url = url
        self._clock = clock

    def all(self) -> tuple[Check, ...]:
        """Return them."""
        return (
            Check("ledger.connection", self.connection),
            Check("ledger.schema", self.schema),
            Check("clock.database", self.database_clock),
            Check("clock.writers", self.writers_clock),
        )

    async def reader(self) -> LedgerReader:
        """Return what reads the ledger at this version's schema.

        Raises:
            Unasked: it can't be read, or its schema is another.
        """
        reader = self._reader()
        if await self._revision(reader) != HEAD:
            raise Unasked("the ledger's schema isn't this version's", "ledger.schema")
        return reader

    async def connection(self) -> Finding:
        """Ask whether the database answers, and which it is."""
        try:
            reader = LedgerReader(self._url)
            version = await reader.ask(server)
        except LedgerUnreadable as error:
            return Finding.fail(f"{error.where or 'the ledger'}: {error.reason}", error.remedy)
        return judge_server(reader.kind, version, reader.where)

    async def schema(self) -> Finding:
        """Compare the ledger's revision with the one that this version works with."""
        revision = await self._revision(self._reader())
        scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
        known = [script.revision for script in scripts.walk_revisions()]
        return judge_schema(revision, head=HEAD, known=known)

    async def database_clock(self) -> Finding:
        """Compare the database server's clock with ours."""
        reader = self._reader()
        await self._revision(reader)
        before = self._clock()
        theirs = await reader.ask(server_time)
        if theirs is None:
            return Finding.ok("SQLite has no clock of its own")
        return judge_reading("the database", Reading(before, theirs, self._clock()))

    async def writers_clock(self) -> Finding:
        """Look for a worker or web tier whose clock is ahead, by what it wrote."""
        newest = await (await self.reader()).ask(newest_instant)
        return judge_ahead("a worker or web tier", newest, self._clock())

    def _reader(self) -> LedgerReader:
        try:
            return LedgerReader(self._url)
        except LedgerUnreadable as error:
            raise Unasked("the ledger can't be read", "ledger.connection") from error

    @staticmethod
    async def _revision(reader: LedgerReader) -> str | None:
        try:
            return await reader.ask(current_revision)
        except LedgerUnreadable as error:
            raise Unasked("the ledger can't be read", "ledger.connection") from error


def judge_server(kind: str, version: tuple[int, ...], where: str) -> Finding:
    """Return whether a database of this kind and version will do."""
    oldest = _OLDEST[kind]
    here = f"{_NAMES[kind]} {'.'.join(map(str, version))} at {where}"
    if version[: len(oldest)] < oldest:
        least = ".".join(map(str, oldest))
        return Finding.fail(f"{here} is older than {least}", f"upgrade it to {least} or newer")
    return Finding.ok(here)


def judge_schema(revision: str | None, *, head: str | None, known: Collection[str]) -> Finding:
    """Return how a ledger's revision stands to this version's ``head``, one of the ``known`` ones."""
    if revision == head:
        return Finding.ok(f"at revision {head}, which this version works with")
    if revision is None:
        return Finding.warn("the database is empty", "start a worker: it builds the ledger")
    if revision in known:
        return Finding.fail(
            f"at revision {revision}, behind this version's {head}",
            "start a worker of this version: it brings the ledger up. Back it up before",
        )
    return Finding.fail(
        f"at revision {revision}, which this version doesn't know: it is of a newer one, or no ledger",
        "run the version that the ledger was brought up by, or name the right database",
    )
