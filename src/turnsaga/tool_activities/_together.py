"""The calls of one reply answer their workflow at once, if they end at about the same time.

It goes on only when it has all of them, and each answer that comes by itself costs a workflow task: more
than the ledger's part of the call. What a call did is in the ledger by then, and seen by everybody.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from turnsaga.models import CallRef

__all__ = ["Together"]

T = TypeVar("T")
_Reply: TypeAlias = tuple[str, str, int]
_WAIT_S: Final = 0.05


class _Running:
    """The calls of one reply that run on this worker."""

    def __init__(self) -> None:
        self.count = 0
        self.all_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Together:
    """The replies whose calls run on this worker."""

    def __init__(self) -> None:
        self._replies: dict[_Reply, _Running] = {}

    async def ended(self, ref: CallRef, attempt: Awaitable[T]) -> T:
        """Return what an attempt returns, up to 50 ms later while other calls of its reply still run.

        What it raises is raised at once.
        """
        reply = (ref.tenant, ref.turn, ref.step)
        running = self._replies.get(reply)
        if running is None:
            running = self._replies[reply] = _Running()
        running.count += 1
        try:
            outcome = await attempt
        finally:
            running.count -= 1
            if not running.count:
                del self._replies[reply]
                running.all_ended.set_result(None)
        if running.count:
            # The outcome is stored: nothing is won by ending as cancelled.
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running.all_ended}, timeout=_WAIT_S)
        return outcome
