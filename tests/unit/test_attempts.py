"""A call is never torn: not by a cancellation from outside, nor by one of its own."""

import asyncio
from datetime import timedelta

import pytest

from turnsaga.attempts import untorn

SECOND = timedelta(seconds=1)


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
