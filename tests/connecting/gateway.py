"""A gateway in front of Temporal: it ends TLS, and notes what clients say of themselves."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived

from tests.connecting.certificates import Authority

NAME = "temporal.test"


@dataclass
class Gateway:
    """Where it listens, and what was seen: requests' headers, and the clients' certificates by name.

    With ``refuses`` set it answers each request by itself, with that status of gRPC.
    """

    address: str = ""
    refuses: int | None = None
    requests: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    clients: list[str | None] = field(default_factory=list[str | None])
    _ends: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])
    _carrying: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def said(self, header: str) -> set[str]:
        """Return the values that a header had."""
        return {request[header] for request in self.requests if header in request}

    async def carry(
        self, upstream: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection's bytes both ways, and read along what the client says."""
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        self.clients.append(_common_name(writer))
        from_server, to_server = await asyncio.open_connection(*upstream)
        ends = {writer, to_server}
        self._ends |= ends
        back = asyncio.create_task(_pump(from_server, writer))
        listening = H2Connection(H2Configuration(client_side=False))
        listening.initiate_connection()
        with suppress(ConnectionError, ssl.SSLError):
            while sent := await reader.read(65536):
                self._read(listening, sent)
                if self.refuses is None:
                    to_server.write(sent)
                else:
                    writer.write(listening.data_to_send())
        back.cancel()
        for end in ends:
            end.transport.abort()
        self._ends -= ends

    async def close(self) -> None:
        """Cut all connections, and wait until they are closed."""
        for end in set(self._ends):
            end.transport.abort()
        await asyncio.gather(*self._carrying)

    def _read(self, listening: H2Connection, sent: bytes) -> None:
        for event in listening.receive_data(sent):
            if isinstance(event, RequestReceived):
                self.requests.append({_text(name): _text(value) for name, value in event.headers})
                if self.refuses is not None:
                    listening.send_headers(event.stream_id, _refusal(self.refuses), end_stream=True)
            elif isinstance(event, DataReceived):
                listening.acknowledge_received_data(event.flow_controlled_length, event.stream_id)


@asynccontextmanager
async def gateway_to(
    target: str, folder: Path, authority: Authority, *, asks_clients: bool = False, port: int = 0
) -> AsyncIterator[Gateway]:
    """Run a gateway whose certificate is for ``NAME`` alone; with ``asks_clients`` they need one too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(NAME).put(folder, "gateway"))
    context.set_alpn_protocols(["h2"])
    if asks_clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.certificate)
    host, _, number = target.rpartition(":")
    gateway = Gateway()
    server = await asyncio.start_server(
        lambda reader, writer: gateway.carry((host, int(number)), reader, writer),
        "127.0.0.1",
        port,
        ssl=context,
    )
    gateway.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield gateway
    finally:
        server.close()
        await gateway.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while said := await reader.read(65536):
            writer.write(said)
    writer.close()


def _refusal(status: int) -> list[tuple[str, str]]:
    return [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", str(status)),
        ("grpc-message", "go away"),
    ]


def _common_name(writer: asyncio.StreamWriter) -> str | None:
    certificate: dict[str, Any] = writer.get_extra_info("peercert") or {}
    subject: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())
    return dict(pair for part in subject for pair in part).get("commonName")


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
