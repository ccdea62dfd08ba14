"""``Guard``: what holds for every request, whichever route it goes to.

It is plain ASGI. Starlette's ``BaseHTTPMiddleware`` puts a task between the server and the handler, in
which ``is_disconnected`` never becomes true: https://github.com/encode/starlette/discussions/2094.
"""

import asyncio
import time
from typing import Final

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from web.hosts import Hosts
from web.problems import Problem, Word, answer_problem, unavailable

__all__ = ["MAX_BODY_BYTES", "MAX_ID_CHARACTERS", "Guard"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
MAX_BODY_BYTES: Final = 1024 * 1024
MAX_ID_CHARACTERS: Final = 200
_PROBES: Final = ("/healthz", "/readyz", "/metrics")


class Guard:
    """Refuses foreign hosts, long ids and large bodies; logs each request; answers what failed with 500."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        structlog.contextvars.clear_contextvars()
        try:
            problem = _objection(scope, self._hosts)
            if problem is None:
                await self._app(scope, exchange.receive, exchange.send)
            else:
                await answer_problem(problem)(scope, receive, exchange.send)
        except asyncio.CancelledError:
            # The server stops and has waited long enough. It would answer 500 in plain text.
            if exchange.status is None:
                await answer_problem(_stopping())(scope, receive, exchange.send)
            raise
        except Exception:
            _log.exception("web.failed", method=scope["method"], path=scope["path"])
            # Once the answer has begun, only a cut connection tells the client that it isn't whole.
            if exchange.status is not None:
                raise
            problem = Problem(Word.INTERNAL, "this was logged; asking again is safe")
            await answer_problem(problem)(scope, receive, exchange.send)
        finally:
            exchange.log(scope)


class _Exchange:
    """One request and its answer, as they pass through."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._received_bytes = 0
        self._began = time.monotonic()

    async def receive(self) -> Message:
        """Hand on what the client sends.

        Raises:
            Problem: it is more than a body may have.
        """
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes > MAX_BODY_BYTES and self.status is None:
            raise _too_large()
        return message

    async def send(self, message: Message) -> None:
        """Hand on what the app answers."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
        await self._send(message)

    def log(self, scope: Scope) -> None:
        """Write the request's line. The query stays out of it."""
        say = _log.debug if scope["path"] in _PROBES else _log.info
        say(
            "web.request",
            method=scope["method"],
            path=scope["path"],
            status=self.status,
            ms=round((time.monotonic() - self._began) * 1000),
        )


def _objection(scope: Scope, hosts: Hosts) -> Problem | None:
    headers = Headers(scope=scope)
    if not hosts.serves(headers.getlist("host")):
        return Problem(Word.FORBIDDEN_HOST, hosts.why)
    path: str = scope["path"]
    if path.startswith("/v1/") and any(len(part) > MAX_ID_CHARACTERS for part in path.split("/")):
        return Problem(
            Word.INVALID_REQUEST,
            f"path: an id has at most {MAX_ID_CHARACTERS} characters",
            members={"field": "path"},
        )
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        return _too_large()
    return None


def _stopping() -> Problem:
    return unavailable(Word.STOPPING, "the server stops; what was begun goes on, and asking again is safe")


def _too_large() -> Problem:
    return Problem(Word.TOO_LARGE, f"a body has at most {MAX_BODY_BYTES} bytes")
