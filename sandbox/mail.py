"""MAIL: an SMTP server that keeps what it accepts, and honours no idempotency keys."""

import asyncio
import json
import secrets
import socket
import sqlite3
from dataclasses import dataclass
from email.errors import MessageError
from email.message import EmailMessage
from email.parser import BytesHeaderParser
from email.policy import default as default_policy
from functools import partial
from typing import AnyStr, cast

from aiosmtpd.smtp import SMTP, Envelope, Session

from sandbox import truth
from sandbox.calls import Answer, Moment, Op, Operation
from sandbox.errors import ClosingDown
from sandbox.exchange import Exchange, Verdict
from sandbox.wire import MAX_BODY_BYTES

SYSTEM = "mail"

_ACCEPTED = Answer(250, "2.0.0 accepted")
_HOSTNAME = "sandbox.localhost"


@dataclass(frozen=True, slots=True)
class _Mail:
    sender: str
    recipients: tuple[str, ...]
    subject: str
    identity: str
    key: str | None


class MailServer:
    """Listens for SMTP on the running event loop."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._sessions = _Sessions()
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._exchange, self._sessions), sock=listening
        )

    async def close(self) -> None:
        """Stop listening and cut the connections that are open."""
        if self._server is None:
            return
        self._server.close()
        await self._sessions.abort()
        await self._server.wait_closed()


class _Sessions:
    """The connections that are open."""

    def __init__(self) -> None:
        self._open: set[_Connection] = set()
        self._none = asyncio.Event()
        self._none.set()

    def add(self, session: "_Connection") -> None:
        self._open.add(session)
        self._none.clear()

    def discard(self, session: "_Connection") -> None:
        self._open.discard(session)
        if not self._open:
            self._none.set()

    async def abort(self) -> None:
        """Cut all connections and return when they are lost."""
        for session in self._open:
            session.abort()
        await self._none.wait()


class _Connection(SMTP):
    """One SMTP connection, which can be cut, and tells when an answer to DATA went out."""

    def __init__(self, exchange: Exchange, sessions: _Sessions) -> None:
        super().__init__(
            self,
            data_size_limit=MAX_BODY_BYTES,
            enable_SMTPUTF8=True,
            hostname=_HOSTNAME,
            ident="ESMTP",
            loop=asyncio.get_running_loop(),
        )
        self._exchange = exchange
        self._sessions = sessions
        self._due: Verdict | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sessions.add(self)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._sessions.discard(self)

    def abort(self) -> None:
        """Close the connection at once; its task is cancelled by that."""
        if self.transport is not None:
            cast("asyncio.Transport", self.transport).abort()

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802  # aiosmtpd's
        try:
            verdict = await self._exchange.run(SYSTEM, _read(envelope))
        except ClosingDown:
            await self._cut()
            raise
        if verdict.cut:
            await self._cut()
        self._due = verdict
        return f"{verdict.answer.status} {verdict.answer.body}"

    async def push(self, status: AnyStr) -> None:
        """Send an answer, and log it where it is the one to a message."""
        verdict, self._due = self._due, None
        await super().push(status)
        if verdict is not None:
            await self._exchange.answered(verdict)

    async def _handle_client(self) -> None:
        try:
            await super()._handle_client()
        except ConnectionError:
            # The client has gone without QUIT; there is nobody to tell.
            return

    async def _cut(self) -> None:
        self.abort()
        # Nothing may follow; the loss of the connection cancels this task.
        await asyncio.get_running_loop().create_future()


def list_messages(db: sqlite3.Connection) -> dict[str, object]:
    """Return what was received, in order."""
    return {
        "messages": [
            {
                "from": row["sender"],
                "to": json.loads(row["recipients"]),
                "subject": row["subject"],
                "identity": row["identity"],
                "key": row["key"],
                "at": truth.instant(row["at"]),
            }
            for row in db.execute("SELECT * FROM messages ORDER BY seq")
        ]
    }


def _read(envelope: Envelope) -> Operation:
    parsed = BytesHeaderParser(policy=default_policy).parsebytes(envelope.original_content or b"")
    mail = _Mail(
        sender=_text(envelope.mail_from),
        recipients=tuple(_text(address) for address in envelope.rcpt_tos),
        subject=_header(parsed, "Subject") or "",
        identity=_header(parsed, "X-Identity") or f"msg_{secrets.token_hex(12)}",
        key=_header(parsed, "X-Idempotency-Key"),
    )
    return Operation(
        op=Op.APPLY,
        method="DATA",
        path="",
        perform=partial(_accept, mail=mail),
        failure=_failure,
        key=mail.key,
        identity=mail.identity,
    )


def _accept(moment: Moment, mail: _Mail) -> Answer:
    moment.db.execute(
        "INSERT INTO messages (sender, recipients, subject, identity, key, at) VALUES (?, ?, ?, ?, ?, ?)",
        (mail.sender, json.dumps(mail.recipients), mail.subject, mail.identity, mail.key, moment.now),
    )
    truth.log_effect(moment, mail.identity, ref="")
    return _ACCEPTED


def _header(message: EmailMessage, name: str) -> str | None:
    try:
        value = message.get(name)
    except (MessageError, ValueError, IndexError):
        # The header parser of the standard library gives up on some malformed values.
        return None
    return None if value is None else _text(str(value)).strip() or None


def _text(value: str | None) -> str:
    """Return what SQLite can store: bytes that were no text come as lone surrogates."""
    return (value or "").encode("utf-8", "replace").decode("utf-8")


def _failure(status: int) -> Answer:
    return Answer(status, f"{status // 100}.3.0 a knob of the sandbox lets this message fail")
