"""How an attempt runs inside an activity: it heartbeats, and its call is never torn.

A tool's function may be a coroutine function or a plain one. A plain one runs in a thread of its own,
which nothing can stop; nor can anything stop a coroutine that swallows its cancellation. Such a call is
left behind when its time is over, and whoever waits for it learns that it still goes on.
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from temporalio import activity

__all__ = ["StillGoing", "bounded", "heartbeating", "stand_by", "started", "untorn"]

T = TypeVar("T")
_BEAT_S: Final = 1.0
_GRACE_S: Final = 1.0
# Together less than the time without a heartbeat after which a worker counts as dead.
_STAND_BY_S: Final = 2.0
_HEARD_S: Final = 0.5


class StillGoing(TimeoutError):
    """A call's time is over, and it can't be stopped; ``task`` has its outcome once there is one."""

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        super().__init__("the call's time is over, and it goes on")
        self.task = task


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Heartbeat in the background, so that a worker's death is noticed in seconds.

    What takes less than a second needs none: each is a call to the server.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        timer = loop.call_later(_BEAT_S, beat)
        activity.heartbeat()

    timer = loop.call_later(_BEAT_S, beat)
    try:
        yield
    finally:
        timer.cancel()


async def stand_by() -> None:
    """Let a model request that met the fence wait until its turn has ended, before it answers.

    The workflow has dropped this request when it was told to stop, and an answer would wake it once more
    amid its undos; one that comes with its last task makes that fail and be done again from the start.
    Mostly the turn has ended after this wait. If nobody has told the workflow to stop, the answer does.
    Heartbeats must not be on meanwhile: they would bring the cancellation at once.

    Raises:
        CancelledError: the turn is still being settled: end without an answer.
    """
    await asyncio.sleep(_STAND_BY_S)
    activity.heartbeat()
    try:
        await asyncio.sleep(_HEARD_S)
    except asyncio.CancelledError:
        told = activity.cancellation_details()
        # Of a turn that has ended nobody takes an answer, and a cancellation would be logged as a failure.
        if told is None or not told.not_found:
            raise


async def started(function: Callable[..., object], *arguments: object) -> Any:  # noqa: ANN401  # what the function returns
    """Run a tool's function: a coroutine function here, any other in a thread.

    What ends a process or a task (``sys.exit`` in a tool's own code, say) is turned into an error: one
    call must not take the worker's other calls with it.

    Raises:
        RuntimeError: it raised what isn't an ``Exception``.
    """
    try:
        if _is_async(function):
            return await cast("Awaitable[object]", function(*arguments))
        result = await _in_thread(function, arguments)
        return await result if inspect.isawaitable(result) else result
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise RuntimeError(f"the call raised {type(error).__name__}") from error


async def untorn(call: Awaitable[T], *, within: timedelta) -> T:
    """Await a call to its own end or its time limit, whatever cancels the caller meanwhile.

    A cancelled task (a worker that shuts down, say) must not cut a request in two: its answer is the
    only thing that tells what it did. The caller's cancellation is dropped, since the attempt ends right
    after its outcome is stored.

    Raises:
        TimeoutError: the limit is over; ``StillGoing`` if the call can't be stopped.
        RuntimeError: the call cancelled itself.
    """
    task = asyncio.ensure_future(_awaited(call))
    await _ended(task, within.total_seconds())
    if not task.done():
        task.cancel()
        await _ended(task, _GRACE_S)
        if not task.done():
            raise StillGoing(task)
        if task.cancelled():
            raise TimeoutError
    if task.cancelled():
        # Left as a cancellation it would end the attempt before its outcome is stored.
        raise RuntimeError("the call cancelled itself")
    return task.result()


async def bounded(call: Awaitable[T], *, within: timedelta) -> T:
    """Await a call that changes nothing outside, up to its time limit; it may be torn.

    Raises:
        TimeoutError: the limit is over.
        RuntimeError: the call cancelled itself.
    """
    task = asyncio.ensure_future(_awaited(call))
    # It may be left behind, and nobody asks then how it ended.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        await asyncio.wait({task}, timeout=within.total_seconds())
    finally:
        finished = task.done()
        task.cancel()
    if not finished:
        raise TimeoutError
    if task.cancelled():
        raise RuntimeError("the call cancelled itself")
    return task.result()


async def _ended(task: "asyncio.Task[Any]", within_s: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while not task.done() and (left := until - loop.time()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=left)


async def _awaited(call: Awaitable[T]) -> T:
    return await call


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object with an async __call__
    )


async def _in_thread(function: Callable[..., T], arguments: tuple[object, ...]) -> T:
    """Run a function in a thread, and wait for its end whatever cancels the wait: a thread can't be stopped.

    The thread is a daemon, unlike a pool's: a call that hangs must not keep the worker's process alive.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def end(outcome: Callable[[Any], None], value: object) -> None:
        # The loop is closed once the worker has left.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(outcome, value)

    def work() -> None:
        try:
            result = context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001  # raised where the call is awaited
            end(future.set_exception, _settable(error))
        else:
            end(future.set_result, result)

    threading.Thread(target=work, name=f"tool {getattr(function, '__name__', '')}", daemon=True).start()
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({future})
    return future.result()


def _settable(error: BaseException) -> BaseException:
    # A future takes no StopIteration.
    return RuntimeError("the call raised StopIteration") if isinstance(error, StopIteration) else error
