"""HOOK: an incoming webhook of a chat, which honours no idempotency keys and can't be asked.

It answers in the words of Slack's incoming webhooks.
Source: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks/
"""

import hashlib
import sqlite3
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from sandbox import truth
from sandbox.calls import Answer, Moment, Op, Operation
from sandbox.errors import Refused
from sandbox.wire import WireRequest

SYSTEM = "hook"
# Slack's own limit on a text.
MAX_TEXT: Final = 40_000

_WHOLE: Final = 200
_HEAD: Final = 160
_ASKING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TEXT: Final = ("content-type", "text/plain; charset=utf-8")


class _MessageBody(BaseModel):
    # A chat takes more than a text; what this one doesn't show is passed over.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    text: str = ""


@dataclass(frozen=True, slots=True)
class _Post:
    channel: str
    text: str

    @property
    def identity(self) -> str:
        return identity_of(self.channel, self.text)


def identity_of(channel: str, text: str) -> str:
    """Return the business identity of a message, ``channel/text``.

    A text over 200 characters stands in it as its first 160, "… sha256:" and the hexadecimal SHA-256 of
    all of it in UTF-8. Clients that name messages do the same; docs/tools.md has the rule.
    """
    if len(text) > _WHOLE:
        text = f"{text[:_HEAD]}… sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return f"{channel}/{text}"


def read(request: WireRequest) -> Operation:
    """Return what a request asks for; one that is refused is an operation that refuses."""
    key = request.headers.get("idempotency-key") or None
    post = None
    try:
        post = _read_post(request)
        perform = partial(_accept, post=post)
    except Refused as refused:
        perform = partial(_answer, answer=refused.answer)
    return Operation(
        op=Op.LOOKUP if request.method in _ASKING else Op.APPLY,
        method=request.method,
        path=request.path,
        perform=perform,
        failure=_failure,
        key=key,
        identity=None if post is None else post.identity,
    )


def list_messages(db: sqlite3.Connection) -> dict[str, object]:
    """Return the messages that are there, in order."""
    return {
        "messages": [
            {
                "channel": row["channel"],
                "text": row["text"],
                "identity": row["identity"],
                "key": row["key"],
                "at": truth.instant(row["at"]),
            }
            for row in db.execute("SELECT * FROM posts ORDER BY seq")
        ]
    }


def delete_by_hand(db: sqlite3.Connection, identity: str) -> bool:
    """Delete the messages of an identity as a person in the channel does; tell whether there were any."""
    deleted = db.execute("DELETE FROM posts WHERE identity = ?", (identity,)).rowcount > 0
    truth.wipe(db, SYSTEM, identity)
    return deleted


def _read_post(request: WireRequest) -> _Post:
    match request.segments:
        case (channel,) if channel:
            pass
        case _:
            raise _refusal(404, "no_service")
    if request.headers.get("authorization") is not None and request.bearer is None:
        raise _refusal(401, "invalid_token")
    if request.method != "POST":
        raise Refused(_plain(405, "method_not_allowed").with_headers(("allow", "POST")))
    try:
        text = _MessageBody.model_validate_json(request.body).text
    except ValidationError as error:
        raise _refusal(400, "invalid_payload") from error
    if not text.strip():
        raise _refusal(400, "no_text")
    if len(text) > MAX_TEXT:
        raise _refusal(400, "msg_too_long")
    return _Post(channel, text)


def _accept(moment: Moment, post: _Post) -> Answer:
    moment.db.execute(
        "INSERT INTO posts (channel, text, identity, key, at) VALUES (?, ?, ?, ?, ?)",
        (post.channel, post.text, post.identity, moment.call.key, moment.now),
    )
    truth.log_effect(moment, post.identity, ref="")
    return _plain(200, "ok")


def _answer(_moment: Moment, answer: Answer) -> Answer:
    return answer


def _failure(status: int) -> Answer:
    if status >= 500:
        return _plain(status, "server_error")
    return _plain(status, "rate_limited" if status == 429 else "request_refused")


def _refusal(status: int, word: str) -> Refused:
    return Refused(_plain(status, word))


def _plain(status: int, word: str) -> Answer:
    return Answer(status, word, (_TEXT,))
