"""Work that goes on when its request is gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

__all__ = ["Untorn"]

T = TypeVar("T")
_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Untorn:
    """Runs coroutines to their own end: a client that leaves, or a server that stops, tears none."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns. The caller's cancellation ends the waiting, not the work."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def drain(self, *, within_s: float) -> None:
        """Wait for what still runs, and cancel what takes longer than ``within_s``."""
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=within_s)
        for task in late:
            task.cancel()
        if late:
            _log.error("web.torn", tasks=len(late), after_s=within_s)
            await asyncio.wait(late)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Read, so that one whose request is gone isn't reported as never retrieved.
            task.exception()
