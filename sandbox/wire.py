"""HTTP as the vendors' stand-ins need it: raw paths, bounded bodies, connections cut short."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from sandbox.calls import Answer, Operation
from sandbox.errors import BodyTooLarge, ClientGone, ClosingDown
from sandbox.exchange import Exchange

MAX_BODY_BYTES = 1_048_576

# What is read of a body that is too large, so that its client gets the answer.
_DRAIN_BYTES = 16 * MAX_BODY_BYTES

_TRANSPORT = "sandbox.transport"


class CuttableProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with the connection's transport in the scope of each request."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        inner = self.app

        async def with_transport(scope: Scope, receive: Receive, send: Send) -> None:
            scope[_TRANSPORT] = self.transport
            await inner(scope, receive, send)

        self.app = with_transport


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request to one system, whole.

    ``segments`` are those of the path behind the system's mount, each percent-decoded by
    itself, so that an id can hold a slash.
    """

    method: str
    segments: tuple[str, ...]
    query: str
    headers: Headers
    body: bytes

    @property
    def path(self) -> str:
        return "/" + "/".join(self.segments)

    @property
    def bearer(self) -> str | None:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() or None if scheme.lower() == "bearer" else None


class VendorEndpoint:
    """The ASGI application of one system that is called over HTTP."""

    def __init__(self, system: str, read: Callable[[WireRequest], Operation], exchange: Exchange) -> None:
        self._system = system
        self._read = read
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive)
        except BodyTooLarge as error:
            await send_answer(problem(413, str(error)), send)
            return
        except ClientGone:
            return
        try:
            verdict = await self._exchange.run(self._system, self._read(self._request(scope, body)))
        except ClosingDown:
            await _cut(scope, receive)
            return
        if verdict.cut or _transport(scope).is_closing():
            await _cut(scope, receive)
            return
        await send_answer(verdict.answer, send)
        await self._exchange.answered(verdict)

    def _request(self, scope: Scope, body: bytes) -> WireRequest:
        mount = f"/{self._system}/"
        raw_path = scope["raw_path"].decode("ascii").removeprefix(mount)
        return WireRequest(
            method=scope["method"],
            segments=tuple(unquote(segment) for segment in raw_path.split("/")),
            query=scope["query_string"].decode("latin-1"),
            headers=Headers(scope=scope),
            body=body,
        )


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the request's body.

    Raises:
        BodyTooLarge: it is bigger than ``MAX_BODY_BYTES``.
        ClientGone: it never came whole.
    """
    declared = Headers(scope=scope).get("content-length", "0")
    if declared.isdecimal() and int(declared) > _DRAIN_BYTES:
        raise BodyTooLarge(MAX_BODY_BYTES)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= MAX_BODY_BYTES:
            chunks.append(chunk)
        if size > _DRAIN_BYTES:
            raise BodyTooLarge(MAX_BODY_BYTES)
        if not message.get("more_body", False):
            break
    if size > MAX_BODY_BYTES:
        raise BodyTooLarge(MAX_BODY_BYTES)
    return b"".join(chunks)


async def send_answer(answer: Answer, send: Send) -> None:
    """Send an answer; after the last of it was written this doesn't suspend any more."""
    body = answer.body.encode()
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    if answer.status != HTTPStatus.NO_CONTENT:
        headers.append((b"content-length", str(len(body)).encode("ascii")))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def problem(status: int, detail: str, **more: object) -> Answer:
    """Return an error of the sandbox itself, as RFC 9457 shapes it."""
    content: Mapping[str, object] = {
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **more,
    }
    return Answer(status, json.dumps(content), (("content-type", "application/problem+json"),))


def _transport(scope: Scope) -> asyncio.Transport:
    transport: asyncio.Transport = scope[_TRANSPORT]
    return transport


async def _cut(scope: Scope, receive: Receive) -> None:
    """Close the connection without an answer.

    uvicorn answers 500 for an application that returns before it has learned that the
    connection is gone, so this waits for that.
    """
    _transport(scope).abort()
    while (await receive())["type"] != "http.disconnect":
        pass
