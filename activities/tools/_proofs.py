"""What a call over HTTP proves about its effect when it wasn't answered as it should be."""

from typing import Final

import httpx

from turnsaga.tools import Call

__all__ = ["NEVER_SENT", "is_refusal", "patience"]

NEVER_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)
"""Errors before there was a connection: nothing of the request has left."""

_CONNECT_S: Final = 10.0


def patience(call: Call) -> httpx.Timeout:
    """Return how long to wait for what: less for a connection than the call may take.

    So one that doesn't come about is known as such before the call is cut off, which proves nothing.
    """
    within = call.remaining.total_seconds()
    return httpx.Timeout(within, connect=min(within / 3, _CONNECT_S))


def is_refusal(answer: httpx.Response) -> bool:
    """Tell whether an answer proves that nothing was applied.

    A 429 doesn't: it may come from a gateway that counts answers, after the system has worked. Nor does a
    5xx, or a redirect.
    """
    return 400 <= answer.status_code < 500 and answer.status_code != 429
