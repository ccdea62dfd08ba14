"""``post_message``: a chat's incoming webhook. It knows no keys, can't be asked, and takes nothing back."""

import hashlib
from typing import Annotated, Final
from urllib.parse import quote

import httpx
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from activities.tools._proofs import is_refusal, lost, patience
from turnsaga.deployment import Finding
from turnsaga.outcomes import learned, read_status
from turnsaga.tools import Call, Committed, EffectTool, JsonObject

__all__ = ["Messages", "PostMessage", "identity_of"]

_WHOLE: Final = 200
_HEAD: Final = 160
# A channel that nobody has, for a question.
_NOBODY: Final = "turnsaga-doctor"


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("there is nothing to read in it")
    return text


class PostMessage(BaseModel):
    """Arguments of ``post_message``; line breaks and tabs are the only control characters of a text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # No slash and no dot in front: the channel is a part of the address, and of the identity.
    channel: Annotated[
        str,
        StringConstraints(pattern=r"^#?[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"),
        Field(description="the channel's name, such as billing"),
    ]
    text: Annotated[
        str,
        StringConstraints(min_length=1, max_length=4000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]+$"),
        AfterValidator(_said),
    ]


def identity_of(channel: str, text: str) -> str:
    """Return the business identity of a message, ``channel/text``.

    A text over 200 characters stands in it as its first 160, "… sha256:" and the hexadecimal SHA-256 of
    all of it in UTF-8: identities are in an index, whose entries are bounded. So no long text is named as a
    short one is. Whoever names messages on the vendor's side does the same; docs/tools.md has the rule.
    """
    if len(text) > _WHOLE:
        text = f"{text[:_HEAD]}… sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return f"{channel}/{text}"


class Messages:
    """HOOK's one call: a POST to the channel's own address, below the webhook's."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            # A connection for each message. On one that was kept, the other side may close it as the message
            # leaves; nobody could say then whether it was posted, and nobody may post it again.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Close the connections to HOOK."""
        await self._http.aclose()

    async def answers(self) -> Finding:
        """Ask for a channel that there isn't, which a webhook refuses. Posts nothing."""
        try:
            answer = await self._http.get(_path(_NOBODY))
        except httpx.LocalProtocolError:
            return Finding.fail("HOOK's token can't be sent in a header", "see TURNSAGA_HOOK_TOKEN")
        except httpx.HTTPError as error:
            return Finding.fail(f"HOOK can't be reached ({type(error).__name__})", "see TURNSAGA_HOOK_URL")
        if answer.status_code in {401, 403}:
            return Finding.fail("HOOK refuses the token", "set TURNSAGA_HOOK_TOKEN to one that is valid")
        if answer.status_code == 404:
            return Finding.warn(
                "HOOK answers 404: it hides what may be posted to, or isn't there", "see TURNSAGA_HOOK_URL"
            )
        if not (answer.is_success or is_refusal(answer)):
            return Finding.fail(f"HOOK answers {answer.status_code}", "see TURNSAGA_HOOK_URL")
        return Finding.ok("HOOK answers; whether it takes a message is known when one is posted")

    def tool(self) -> EffectTool[PostMessage]:
        """Return ``post_message``."""
        return EffectTool(
            name="post_message",
            description="Post a message to a channel of the team's chat. It can't be taken back.",
            arguments=PostMessage,
            system="hook",
            says="post to {channel}: {text}",
            summary="post to {channel}",
            commit=self.post,
            irreversible_because="a message that was posted has been read",
            identity=lambda arguments: identity_of(arguments.channel, arguments.text),
        )

    async def post(self, request: JsonObject, call: Call) -> Committed:
        """Post the message. Unless HOOK refuses it, only its "ok" tells what became of it."""
        try:
            answer = await self._http.post(
                _path(request["channel"]),
                json={"text": request["text"]},
                headers=call.headers(),
                timeout=patience(call),
            )
        except httpx.HTTPError as error:
            raise learned(lost(error), "HOOK", type(error).__name__) from None
        if not answer.is_success:
            raise learned(read_status(answer.status_code), "HOOK", answer.status_code)
        return Committed(
            receipt={"status": answer.status_code, "answer": answer.text[:200]},
            result={"posted_to": request["channel"]},
        )


def _path(channel: str) -> str:
    return f"/{quote(channel, safe='')}"
