"""Calls that go on after their time: kept in view until they end, since they may still send.

A thread can't be stopped, nor can a coroutine that swallows its cancellation. While one goes on, the
ledger is told again and again that its request can still leave, so that "not found" isn't believed too
soon. What it returns in the end is evidence. If its worker dies, so does the call, and nobody tells the
ledger any more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from turnsaga.errors import StoreError
from turnsaga.tool_activities._common import now

__all__ = ["AHEAD", "Stragglers"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_EVERY_S: Final = 1.0
AHEAD: Final = timedelta(seconds=5)
"""How far ahead the ledger is told that a request can still leave."""


class Stragglers:
    """The calls of this worker that went on after their time."""

    def __init__(self) -> None:
        self._followed: set[asyncio.Task[None]] = set()

    def follow(
        self,
        call: "asyncio.Task[Any]",
        *,
        keep_open: Callable[[datetime], Awaitable[object]],
        report: Callable[["asyncio.Task[Any]"], Awaitable[object]] | None = None,
    ) -> None:
        """Keep a call in view until it ends, and then report it."""
        task = asyncio.create_task(self._until_it_ends(call, keep_open, report))
        self._followed.add(task)
        task.add_done_callback(self._followed.discard)

    async def _until_it_ends(
        self,
        call: "asyncio.Task[Any]",
        keep_open: Callable[[datetime], Awaitable[object]],
        report: Callable[["asyncio.Task[Any]"], Awaitable[object]] | None,
    ) -> None:
        _log.warning("call.goes_on", reason="its time is over, and it can't be stopped")
        while not call.done():
            try:
                await keep_open(now() + AHEAD)
            except StoreError as error:
                _log.warning("call.goes_on.not_written", error_type=type(error).__name__)
            await asyncio.wait({call}, timeout=_EVERY_S)
        if call.cancelled() or report is None:
            return
        _log.info("call.ended_late", failed=call.exception() is not None)
        await report(call)
