"""How an attempt runs inside an activity: it heartbeats, and its call is never torn."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, TypeVar

from temporalio import activity

__all__ = ["heartbeating", "untorn"]

T = TypeVar("T")
_BEAT_S: Final = 1.0


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Heartbeat in the background, so that a worker's death is noticed in seconds.

    What takes less than a second needs none: each is a call to the server.
    """

    async def beat() -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            activity.heartbeat()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


async def untorn(call: Awaitable[T], *, within: timedelta) -> T:
    """Await a call to its own end or its time limit, whatever cancels the caller meanwhile.

    A cancelled task (a worker that shuts down, say) must not cut a request in two: its answer is the
    only thing that tells what it did. The caller's cancellation is dropped, since the attempt ends right
    after its outcome is stored.

    Raises:
        TimeoutError: the limit is over.
        RuntimeError: the call cancelled itself.
    """

    async def limited() -> T:
        async with asyncio.timeout(within.total_seconds()):
            return await call

    task = asyncio.ensure_future(limited())
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                break
        except Exception:  # noqa: BLE001  # it is raised by result() below
            break
    if task.cancelled():
        # Left as a cancellation it would end the attempt before its outcome is stored.
        raise RuntimeError("the call cancelled itself")
    return task.result()
