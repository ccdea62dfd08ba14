"""The events of a turn as a stream. It is a view of the ledger: who reads it, or leaves, changes nothing."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from turnsaga.errors import StoreUnavailable
from turnsaga.models import Principal, TurnEvent
from web.rates import Reader
from web.tier import Tier, TierOf

__all__ = ["router"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
router = APIRouter()
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_HEADERS: Final = {
    # no-transform: a proxy that compresses holds events back until it has a block of them.
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


@router.get("/v1/turns/{turn}/events")
async def follow(
    turn: str, request: Request, who: Reader, tier: TierOf, after: Annotated[int, Query(ge=0)] = 0
) -> Response:
    """Stream the events above ``Last-Event-ID`` or ``after`` until the turn has ended and all are out.

    A place that this turn doesn't have (of another turn, say) begins from the first event, after the
    comment ``: resync``.
    """
    # Asked before the answer begins: a status of 200 can't be taken back. Reads no event.
    last = (await tier.store.event_page(who, turn, after=0, limit=0)).last
    # A client that has no place yet sends the header empty or not at all.
    place = _place(request.headers.get("last-event-id") or str(after), last)
    stream = _stream(tier, who, turn, after=place or 0, resync=place is None)
    return StreamingResponse(stream, headers=_HEADERS, media_type="text/event-stream")


def _place(given: str, last: int) -> int | None:
    """Return the number after which to begin, or None if the turn has no such event."""
    if not _NUMBER.fullmatch(given):
        return None
    number = int(given)
    return number if number <= last else None


async def _stream(
    tier: Tier, who: Principal, turn: str, *, after: int, resync: bool
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    if resync:
        yield b": resync\n\n"
    sent_at = loop.time()
    async with aclosing(tier.client.follow(who, turn, after=after)) as events:
        try:
            async for event in events:
                if tier.stopping.is_set():
                    return
                if event is not None:
                    yield _frame(event)
                elif loop.time() - sent_at >= tier.keep_alive_s:
                    yield b": keep-alive\n\n"
                else:
                    continue
                sent_at = loop.time()
        except StoreUnavailable as error:
            # The client comes back with its place; until then it isn't told that the turn ended.
            _log.warning("web.stream_cut", turn=turn, reason=str(error))


def _frame(event: TurnEvent) -> bytes:
    encoded = json.dumps(event.data, separators=(",", ":"))
    return f"id: {event.number}\nevent: {event.kind}\ndata: {encoded}\n\n".encode("ascii")
