"""A wire between a worker and its vendors that keeps back what passes over it: requests, or answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal
from urllib.parse import urlsplit

__all__ = ["HeldWire", "Holds", "held_wire"]

Holds = Literal["nothing", "requests", "answers"]
_CHUNK: Final = 65536


class HeldWire:
    """What one process sends over HTTP/1.1, and gets, by way of this one.

    Once it holds requests, each of them waits here, whole, until ``let_go``, also if its sender is gone by
    then. Once it holds answers, the vendor works and its answers get lost here.
    """

    def __init__(self, target: str) -> None:
        self._host, self._port = urlsplit(target).hostname, urlsplit(target).port
        self._let_go = asyncio.Event()
        self._backward: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []
        self.holds: Holds = "nothing"
        self.held = 0
        self.answered = 0

    def let_go(self) -> None:
        """Send the requests that were held, and count their answers in ``answered``."""
        self._let_go.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        self._ends.append(writer)
        vendor = await self._connected(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if self.holds == "requests":
                    while not _is_whole(data) and (more := await reader.read(_CHUNK)):
                        data += more
                    self.held += 1
                    await self._let_go.wait()
                    # The vendor may have closed a connection on which it heard nothing for so long.
                    vendor = await self._connected(writer)
                vendor.write(data)

    async def _connected(self, client: asyncio.StreamWriter) -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self._ends.append(writer)
        self._backward.add(asyncio.create_task(self._back(reader, client)))
        return writer

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if self.holds == "answers":
                    self.held += 1
                    return
                self.answered += self._let_go.is_set()
                writer.write(data)

    def end(self) -> None:
        """Let nothing more pass."""
        for task in self._backward:
            task.cancel()
        for writer in self._ends:
            writer.close()


@asynccontextmanager
async def held_wire(target: str) -> AsyncIterator[tuple[HeldWire, str]]:
    """Give a wire to the vendor at this address, and the address at which it is reached."""
    wire = HeldWire(target)
    server = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
    try:
        yield wire, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        wire.end()
        server.close()


def _is_whole(request: bytes) -> bool:
    head, ended, body = request.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(ended) and len(body) >= sum(int(line.partition(b":")[2]) for line in lengths)
