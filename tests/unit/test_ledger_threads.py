"""The ledger's threads: what is handed to them is done, whatever becomes of others or of its caller."""

import asyncio
import threading
from contextvars import ContextVar
from functools import partial

import pytest

from turnsaga.store._threads import Threads

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


async def test_work_that_fails_leaves_the_others_whole() -> None:
    threads = Threads(1, name="t")

    def fail() -> int:
        raise LookupError("mine alone")

    answers = await asyncio.gather(
        threads.run(lambda: 1), threads.run(fail), threads.run(lambda: 3), return_exceptions=True
    )
    await threads.close()

    assert answers[0] == 1
    assert isinstance(answers[1], LookupError)
    assert answers[2] == 3


async def test_cancelled_caller_leaves_its_work_whole() -> None:
    threads = Threads(1, name="t")
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(10)
        done.append("whole")

    async def ask() -> None:
        await threads.run(work)

    caller = asyncio.create_task(ask())
    await asyncio.to_thread(begun.wait, 10)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go_on.set()
    await threads.close()

    assert done == ["whole"]


async def test_one_thread_keeps_the_order_and_two_work_at_once() -> None:
    one, two = Threads(1, name="one"), Threads(2, name="two")
    order: list[int] = []
    meeting = threading.Barrier(2, timeout=10)

    await asyncio.gather(*(one.run(partial(order.append, number)) for number in range(20)))
    await asyncio.gather(two.run(meeting.wait), two.run(meeting.wait))
    await one.close()
    await two.close()

    assert order == list(range(20))


async def test_work_runs_in_its_caller_s_context() -> None:
    threads = Threads(1, name="t")
    WHO.set("ada")

    found = await threads.run(WHO.get)
    await threads.close()

    assert found == "ada"


async def test_what_was_taken_and_given_back_comes_next_in_its_order() -> None:
    threads = Threads(1, name="t")
    waiting = threading.Event()
    order: list[int] = []

    def take_two() -> None:
        assert waiting.wait(10)
        taken = [threads.take(), threads.take()]
        threads.give_back([job for job in taken if job is not None])

    first = threads.run(take_two)
    others = [threads.run(partial(order.append, number)) for number in range(4)]
    waiting.set()
    await asyncio.gather(first, *others)
    await threads.close()

    assert order == [0, 1, 2, 3]


async def test_closing_waits_for_what_was_asked_and_takes_nothing_more() -> None:
    threads = Threads(1, name="t")
    go_on = threading.Event()
    first = threads.run(lambda: go_on.wait(10))
    second = threads.run(lambda: "also this")
    closing = asyncio.create_task(threads.close())
    await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="closed"):
        threads.run(lambda: "too late")
    go_on.set()
    await closing

    assert (await first, await second) == (True, "also this")
