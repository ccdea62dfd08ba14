"""A wire to Postgres that a test can cut: at a COMMIT, before or after the server has it, or at once.

It counts exchanges: how often the client speaks, and then waits for the server.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from sqlalchemy.engine import make_url

# The statement alone: BEGIN names READ COMMITTED.
_COMMIT: Final = b"COMMIT\0"


class Cut(Enum):
    """Where the next COMMIT is cut."""

    BEFORE = "the server never gets it"
    AFTER = "the server carries it out, and its answer is lost"


@dataclass
class Wire:
    """Connections of clients to one server; ``next_cut`` is used up by the first COMMIT that comes."""

    url: str
    next_cut: Cut | None = None
    cuts: int = 0
    exchanges: int = 0
    holding: bool = False
    _ends: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])
    _carrying: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def cut(self) -> None:
        """Cut all connections now."""
        for end in set(self._ends):
            end.transport.abort()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._ends) // 2

    async def close(self) -> None:
        """Cut all connections, and wait until they are closed."""
        self.cut()
        await asyncio.gather(*self._carrying)

    async def carry(self, upstream: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection's bytes until either end closes it or it is cut."""
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        if self.holding:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_unix_connection(str(upstream))
        ends = {writer, to_server}
        self._ends |= ends
        # Set once the client's COMMIT is with the server: what comes back from then on is lost.
        deaf = asyncio.Event()
        answered = asyncio.Event()
        answered.set()
        back = asyncio.create_task(self._back(from_server, writer, deaf, answered))
        with suppress(ConnectionError):
            while sent := await reader.read(65536):
                if answered.is_set():
                    self.exchanges += 1
                    answered.clear()
                if self.next_cut is not None and _COMMIT in sent:
                    cut, self.next_cut = self.next_cut, None
                    self.cuts += 1
                    if cut is Cut.BEFORE:
                        break
                    deaf.set()
                    to_server.write(sent)
                    await back
                    break
                to_server.write(sent)
        back.cancel()
        for end in ends:
            end.transport.abort()
        self._ends -= ends

    @staticmethod
    async def _back(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        deaf: asyncio.Event,
        answered: asyncio.Event,
    ) -> None:
        with suppress(ConnectionError):
            while said := await reader.read(65536):
                answered.set()
                if deaf.is_set():
                    return
                writer.write(said)
        writer.close()


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    """Open a wire to the server of this database; its ``url`` leads to the same database through it."""
    given = make_url(url)
    folder = given.query["host"]
    assert isinstance(folder, str)
    upstream = Path(folder) / ".s.PGSQL.5432"
    wire = Wire("")
    server = await asyncio.start_server(
        lambda reader, writer: wire.carry(upstream, reader, writer), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    through = given.set(host="127.0.0.1", port=port, query={})
    wire.url = through.render_as_string(hide_password=False)
    try:
        yield wire
    finally:
        server.close()
        await wire.close()
