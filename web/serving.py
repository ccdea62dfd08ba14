"""``serve``: the web tier as a process, from its settings to its exit code."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import uvicorn
from temporalio.client import Client

from settings.shared import ledger
from turnsaga.client import TurnClient
from turnsaga.connecting import temporal_config
from turnsaga.errors import StoreUnavailable, StoreUnusable, TurnSagaError
from turnsaga.plugin import TurnSagaPlugin
from turnsaga.store import SqlStore
from web.app import create_app
from web.identities import choose_identity
from web.identity import Identity
from web.settings import WebSettings

__all__ = ["GRACE_S", "Server", "StartRefused", "serve", "server_config"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_PATIENCE_S: Final = 30.0
GRACE_S: Final = 3
"""Seconds that requests get to end by themselves when the server stops."""


class StartRefused(TurnSagaError):
    """The web tier can't be started like this; says what to change."""


class Server(uvicorn.Server):
    """uvicorn, told to stop by ``stop`` alone: uvicorn's own handler ends the process by the signal."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    def stop(self) -> None:
        """Take no more connections, end the streams, and return from ``serve`` when all are closed."""
        self._stopping.set()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to whoever runs the server."""
        yield


def server_config(app: object, *, grace_s: int = GRACE_S) -> uvicorn.Config:
    """Return how the app is served, by us and by its tests."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=grace_s,
    )


async def serve(settings: WebSettings, *, patience_s: float = _PATIENCE_S) -> None:
    """Serve until SIGTERM or SIGINT, then let what is under way end.

    The ledger must answer within ``patience_s``; Temporal may be away.

    Raises:
        IdentityRefused: who acts can't be told by these settings.
        StartRefused: these settings can't be served.
    """
    identity = choose_identity(settings)
    with _listener(settings) as listener:
        await _serve_on(listener, settings, identity, patience_s)


async def _serve_on(
    listener: socket.socket, settings: WebSettings, identity: Identity, patience_s: float
) -> None:
    store = ledger(settings)
    try:
        temporal = await _temporal()
        client = TurnClient(temporal, store, task_queue=settings.task_queue, default_model=settings.model)
        stopping = asyncio.Event()
        app = create_app(client, settings, identity=identity, stopping=stopping)
        server = Server(server_config(app), stopping)
        with _on_signals(server):
            if await _opened(store, patience_s, stopping):
                _log.info("web.started", address=_address(listener), database=store.where)
                await server.serve(sockets=[listener])
                _log.info("web.stopped")
    finally:
        await store.close()


async def _temporal() -> Client:
    """Return a client that connects at its first call, so that we start while Temporal is away."""
    try:
        config = temporal_config()
        config["lazy"] = True
        config["plugins"] = [TurnSagaPlugin()]
        return await Client.connect(**config)
    except (RuntimeError, ValueError) as error:
        raise StartRefused(f"Temporal's configuration can't be used: {error}") from error


async def _opened(store: SqlStore, patience_s: float, stopping: asyncio.Event) -> bool:
    """Open the ledger; False if the process was told to stop meanwhile."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + patience_s
    while not stopping.is_set():
        try:
            await store.open()
        except StoreUnavailable as error:
            if loop.time() < give_up:
                continue
            raise StartRefused(
                f"the ledger at {error.where!r} couldn't be opened within {patience_s:g} s ({error.reason})"
            ) from error
        except StoreUnusable as error:
            raise StartRefused(str(error)) from error
        return True
    return False


@contextmanager
def _listener(settings: WebSettings) -> Iterator[socket.socket]:
    """Take the port before anything else, so that a second web tier doesn't touch the ledger first."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.web_host, settings.web_port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise StartRefused(f"TURNSAGA_WEB_HOST={settings.web_host!r} can't be used: {error}") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as error:
            raise StartRefused(
                f"port {settings.web_port} of {settings.web_host} can't be had ({error.strerror}); "
                "end what listens there, or choose another TURNSAGA_WEB_PORT"
            ) from error
        yield listener


@contextmanager
def _on_signals(server: Server) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, server.stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
