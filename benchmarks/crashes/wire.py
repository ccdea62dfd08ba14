"""A wire between one worker and its vendors, on which one chosen request meets what its cell says.

The sandbox's knobs have one aim a system; here several sides run on it at once.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.crashes.cells import Holds

__all__ = ["Aim", "Wire", "wire_to"]


@dataclass
class Aim:
    """The ``number``-th POST to a path whose body has ``needle`` in it, and what becomes of it.

    ``then`` is called at that moment, before anything else runs.
    """

    path: str
    holds: Holds
    needle: bytes = b""
    number: int = 1
    then: Callable[[], None] | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def fits(self, request: bytes) -> bool:
        """Tell whether it is this request, and count those like it."""
        line = request.partition(b"\r\n")[0]
        if self.number < 1 or line.split() != [b"POST", self.path.encode(), b"HTTP/1.1"]:
            return False
        self.number -= self.needle in request
        return self.number == 0 and self.needle in request

    def has_come(self) -> None:
        """Note that the request is where it is to be."""
        if self.then is not None:
            self.then()
        self.reached.set()


class Wire:
    """What one process sends over HTTP/1.1, and gets, by way of this one."""

    def __init__(self, target: str) -> None:
        self._host, self._port = urlsplit(target).hostname, urlsplit(target).port
        self.aim: Aim | None = None

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._exchange(await _message(reader), writer):
                pass
        writer.close()

    async def _exchange(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Carry one request and its answer; tell whether the connection is still good."""
        aim = self.aim if self.aim is not None and self.aim.fits(request) else None
        if aim is not None and aim.holds in {"request", "dropped"}:
            aim.has_come()
            await aim.let_go.wait()
            if aim.holds == "dropped":
                return False
        answer = await self._asked(request)
        if aim is not None and aim.holds == "answer":
            aim.has_come()
            await aim.let_go.wait()
            return False
        if aim is not None and aim.holds == "cut":
            writer.transport.abort()
            aim.has_come()
            return False
        writer.write(answer)
        if aim is not None and aim.holds == "answered":
            aim.has_come()
        await writer.drain()
        return True

    async def _asked(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(request)
            return await _message(reader)
        finally:
            writer.close()


@asynccontextmanager
async def wire_to(target: str) -> AsyncIterator[tuple[Wire, str]]:
    """Give a wire to the vendors at this address, and the address at which it is reached."""
    wire = Wire(target)
    server = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
    try:
        yield wire, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Return one request or answer, whole. Neither the sandbox nor its clients send chunks."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(sum(int(line.partition(b":")[2]) for line in lengths))
