"""A wire in front of the vendors that notes what is sent, to the byte, and can answer in their place."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

__all__ = ["RecordedWire", "Request", "Twist", "recorded_wire"]

_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Request:
    """One HTTP request as it came: its head with the last empty line, and its body."""

    head: bytes
    body: bytes

    @property
    def method(self) -> str:
        return self.head.partition(b" ")[0].decode("ascii")

    @property
    def key(self) -> str:
        """The idempotency key that it carries, empty if it has none."""
        return _field(self.head, b"idempotency-key").decode("ascii")

    def with_body(self, body: bytes) -> "Request":
        """Return the same request with another body."""
        lines = [
            b"Content-Length: %d" % len(body) if line.lower().startswith(b"content-length:") else line
            for line in self.head.split(b"\r\n")
        ]
        return replace(self, head=b"\r\n".join(lines), body=body)


@dataclass(frozen=True)
class Twist:
    """What happens to the first POST that passes.

    ``ahead`` makes of it what goes to the vendor before it, as from another attempt; ``until`` is when
    that one is far enough, None if it has its answer. ``says`` takes the place of the vendor's answer.
    """

    ahead: Callable[[Request], Request] | None = None
    until: Callable[[], Awaitable[object]] | None = None
    says: bytes | None = None


@dataclass
class RecordedWire:
    """Carries HTTP/1.1 requests one by one, each on a connection to the vendor of its own."""

    host: str
    port: int
    sent: list[Request] = field(default_factory=list[Request])
    twist: Twist | None = None
    _carrying: set[asyncio.Task[object]] = field(default_factory=set[asyncio.Task[object]])
    _ends: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        self._note(asyncio.current_task())
        self._ends.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    request = Request(*await _read_message(reader))
                    self.sent.append(request)
                    answer = await self._answered(request)
                    if not answer:
                        break
                    writer.write(answer)
        finally:
            # A vendor that gave no answer cut its connection; so does this one.
            writer.transport.abort()
            self._ends.discard(writer)

    async def _answered(self, request: Request) -> bytes:
        twist = self.twist if request.method == "POST" else None
        if twist is None:
            return await self._passed_on(request)
        self.twist = None
        if twist.ahead is not None:
            earlier = asyncio.create_task(self._passed_on(twist.ahead(request)))
            self._note(earlier)
            await (earlier if twist.until is None else twist.until())
        answer = await self._passed_on(request)
        return answer if twist.says is None else twist.says

    async def _passed_on(self, request: Request) -> bytes:
        """Return the vendor's answer, empty if it gave none."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        self._ends.add(writer)
        try:
            writer.write(request.head + request.body)
            return b"".join(await _read_message(reader))
        except (ConnectionError, asyncio.IncompleteReadError):
            return b""
        finally:
            writer.close()
            self._ends.discard(writer)

    def _note(self, task: "asyncio.Task[object] | None") -> None:
        if task is not None:
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def close(self) -> None:
        """Cut all connections, and wait until nothing passes any more."""
        for writer in tuple(self._ends):
            writer.transport.abort()
        await asyncio.gather(*self._carrying)


@asynccontextmanager
async def recorded_wire(target: str) -> AsyncIterator[tuple[RecordedWire, str]]:
    """Give a wire to the vendors at this address, and the address at which they are reached by it."""
    place = urlsplit(target)
    assert place.hostname is not None
    assert place.port is not None
    wire = RecordedWire(place.hostname, place.port)
    server = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
    try:
        yield wire, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await wire.close()


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(_END)
    return head, await reader.readexactly(int(_field(head, b"content-length") or 0))


def _field(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        given, _, value = line.partition(b":")
        if given.lower() == name:
            return value.strip()
    return b""
