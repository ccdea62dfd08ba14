"""What a call over HTTP proves about its effect when it wasn't answered as it should be."""

from typing import Final

import httpx

from turnsaga.outcomes import KNOWN, Answer, Known, read_status
from turnsaga.tools import Call

__all__ = ["is_refusal", "lost", "patience"]

_NEVER_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)
# Errors before there was a connection: nothing of the request has left.


def lost(error: BaseException | None) -> Answer:
    """Return how a call ended that was given no answer."""
    if isinstance(error, _NEVER_SENT):
        return Answer.NEVER_SENT
    return Answer.TIMED_OUT if isinstance(error, httpx.TimeoutException) else Answer.CUT_OFF


def patience(call: Call) -> httpx.Timeout:
    """Return how long to wait for what: for a connection only as long as the request may still leave.

    So one that doesn't come about is known as such before the call is cut off, which proves nothing.
    """
    within = call.remaining.total_seconds()
    connect = max(0.001, min(within / 3, call.send_within.total_seconds()))
    return httpx.Timeout(within, connect=connect, pool=connect)


def is_refusal(answer: httpx.Response) -> bool:
    """Tell whether an answer proves that nothing was applied."""
    return KNOWN[read_status(answer.status_code)] is Known.NOT_APPLIED
