"""A call is never torn: not by a cancellation from outside, nor by one of its own."""

import asyncio
import contextvars
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from turnsaga.attempts import StillGoing, bounded, started, untorn

SECOND = timedelta(seconds=1)
SOON = timedelta(milliseconds=50)


async def test_cancelled_caller_still_gets_the_answer() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def call() -> str:
        begun.set()
        await go_on.wait()
        return "answer"

    caller = asyncio.create_task(untorn(call(), within=SECOND))
    await begun.wait()
    caller.cancel()
    await asyncio.sleep(0)
    caller.cancel()
    go_on.set()

    assert await caller == "answer"


async def test_call_over_its_time_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        await untorn(asyncio.sleep(10), within=timedelta(milliseconds=10))


async def test_error_of_the_call_is_its_caller_s() -> None:
    async def call() -> None:
        raise ValueError("declined")

    with pytest.raises(ValueError, match="declined"):
        await untorn(call(), within=SECOND)


async def test_call_that_cancels_itself_is_an_error_and_no_cancellation() -> None:
    async def call() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled itself"):
        await untorn(call(), within=SECOND)


async def test_plain_function_runs_in_a_thread_with_the_caller_s_context() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")
    name.set("ada")

    def call(greeting: str) -> tuple[str, threading.Thread]:
        return f"{greeting}, {name.get()}", threading.current_thread()

    said, thread = await untorn(started(call, "hello"), within=SECOND)

    assert said == "hello, ada"
    assert thread is not threading.main_thread()
    assert thread.daemon, "a call that hangs must not keep its worker's process alive"


async def test_plain_function_that_returns_a_coroutine_has_it_awaited() -> None:
    async def later(what: str) -> str:
        return what

    def wrapped(what: str) -> Awaitable[str]:
        return later(what)

    assert await started(wrapped, "answer") == "answer"


async def test_thread_that_goes_on_after_its_time_is_left_behind_and_tells_its_end() -> None:
    go_on = threading.Event()

    def call() -> str:
        go_on.wait(10)
        return "late"

    with pytest.raises(StillGoing) as left:
        await untorn(started(call), within=SOON)
    ended_early = left.value.task.done()
    go_on.set()

    assert not ended_early
    assert await left.value.task == "late"


async def test_coroutine_that_swallows_its_cancellation_is_left_behind_and_tells_its_end() -> None:
    go_on = asyncio.Event()

    async def call() -> str:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    with pytest.raises(StillGoing) as left:
        await untorn(started(call), within=SOON)
    go_on.set()

    assert await left.value.task == "late"


async def test_answer_that_a_cancelled_call_still_gives_is_taken() -> None:
    async def call() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return "applied"
        return "never"

    assert await untorn(started(call), within=SOON) == "applied"


def leave() -> None:
    sys.exit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


def stop() -> None:
    raise StopIteration


async def leave_async() -> None:
    sys.exit(3)


@pytest.mark.parametrize("call", [leave, interrupt, stop, leave_async])
async def test_call_that_would_end_the_process_is_an_error_of_its_own(call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="the call raised"):
        await untorn(started(call), within=SECOND)


async def test_bounded_call_is_torn_by_its_caller_and_by_its_limit() -> None:
    ended = list[str]()

    async def call(name: str) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(name)

    caller = asyncio.create_task(bounded(call("cancelled"), within=SECOND))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    with pytest.raises(TimeoutError):
        await bounded(call("over its time"), within=SOON)
    await asyncio.sleep(0.01)

    assert ended == ["cancelled", "over its time"]
