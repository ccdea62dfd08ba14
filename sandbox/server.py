"""One process that listens for HTTP and SMTP, to be run by itself or inside a test."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import uvicorn

from sandbox import records
from sandbox.app import SYSTEMS, build_app
from sandbox.errors import CannotStart
from sandbox.exchange import Exchange
from sandbox.knobs import Panel
from sandbox.mail import MailServer
from sandbox.settings import SandboxSettings
from sandbox.store import Store
from sandbox.wire import CuttableProtocol

_GRACE_S = 5
_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class Serving:
    """Where a sandbox that has started listens."""

    host: str
    port: int
    smtp_port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@asynccontextmanager
async def serve(settings: SandboxSettings) -> AsyncIterator[Serving]:
    """Run a sandbox on the running event loop until the block ends.

    Raises:
        CannotStart: a port is taken, or the database can't be opened.
    """
    async with AsyncExitStack() as stack:
        http_socket = stack.enter_context(_listen(settings.host, settings.port, "SANDBOX_PORT"))
        smtp_socket = stack.enter_context(_listen(settings.host, settings.smtp_port, "SANDBOX_SMTP_PORT"))
        store = Store(settings.database, seed=lambda db: records.seed(db, time.time()))
        await store.open()
        stack.push_async_callback(store.close)
        panel = Panel(SYSTEMS)
        exchange = Exchange(store, panel)
        mail_server = MailServer(exchange)
        stack.push_async_callback(mail_server.close)
        await mail_server.start(smtp_socket)
        http_server = _HttpServer(_config(store, panel, exchange))
        serving = asyncio.create_task(http_server.serve(sockets=[http_socket]))
        stack.push_async_callback(_stop, http_server, serving)
        await http_server.listening.wait()
        if not http_server.started:
            await serving
        # First of all, so that no call that waits for a knob holds up the end.
        stack.push_async_callback(exchange.close)
        yield Serving(settings.host, _port(http_socket), _port(smtp_socket))


def _config(store: Store, panel: Panel, exchange: Exchange) -> uvicorn.Config:
    """Return how uvicorn runs the application."""
    return uvicorn.Config(
        build_app(store, panel, exchange),
        http=CuttableProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )


class _HttpServer(uvicorn.Server):
    """uvicorn without its own handling of signals, which would end the process by the signal."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        # Instead of a look every 100 ms whether to end.
        await self.ending.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.listening.set()


async def _stop(server: _HttpServer, serving: asyncio.Task[None]) -> None:
    server.ending.set()
    await serving


def _listen(host: str, port: int, setting: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Not socket.create_server, which names no protocol: asyncio then leaves Nagle's algorithm
    # on, and each answer waits 40 ms for the client's delayed acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise CannotStart(setting, f"{host}:{port}", error.strerror or str(error)) from error
    listening.setblocking(False)
    return listening


def _port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])
