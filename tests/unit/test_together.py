"""The calls of one reply are answered at once, if they end at about the same time."""

import asyncio
import time

import pytest

from turnsaga.models import CallRef
from turnsaga.tool_activities._together import Together


def call(index: int, *, turn: str = "t", step: int = 1) -> CallRef:
    return CallRef(tenant="acme", turn=turn, step=step, index=index)


async def after(seconds: float, answer: str) -> str:
    await asyncio.sleep(seconds)
    return answer


async def test_call_that_ends_first_is_answered_with_the_last() -> None:
    together, answered = Together(), list[str]()

    async def run(index: int, seconds: float) -> None:
        answered.append(await together.ended(call(index), after(seconds, f"{index}")))

    first, second = asyncio.create_task(run(0, 0)), asyncio.create_task(run(1, 0.02))
    await asyncio.sleep(0.01)
    before = list(answered)
    await asyncio.gather(first, second)

    assert before == [], "the first was answered by itself"
    assert sorted(answered) == ["0", "1"]


async def test_nobody_waits_long_for_a_call_that_goes_on() -> None:
    together, go_on = Together(), asyncio.Event()

    async def slow() -> str:
        await go_on.wait()
        return "slow"

    other = asyncio.create_task(together.ended(call(1), slow()))
    await asyncio.sleep(0)
    begun = time.monotonic()
    waiting = asyncio.create_task(together.ended(call(0), after(0, "quick")))
    await asyncio.wait({waiting}, timeout=5)

    assert waiting.done(), "it waits as long as the other one runs"
    assert await waiting == "quick"
    assert time.monotonic() - begun >= 0.04, "it didn't wait at all"
    assert not other.done()
    go_on.set()
    assert await other == "slow"


@pytest.mark.parametrize(
    "other", [call(1, turn="another"), call(1, step=2)], ids=["of another turn", "of another reply"]
)
async def test_call_of_something_else_is_waited_for_by_nobody(
    other: CallRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnsaga.tool_activities._together._WAIT_S", 60)
    together = Together()
    running = asyncio.create_task(together.ended(other, after(60, "later")))
    await asyncio.sleep(0)
    ended = asyncio.create_task(together.ended(call(0), after(0, "now")))
    await asyncio.wait({ended}, timeout=5)

    assert ended.done(), "it waits for what isn't of its reply"
    running.cancel()


async def test_attempt_that_fails_fails_at_once_and_frees_the_others() -> None:
    together = Together()

    async def fails() -> str:
        raise ValueError("no answer")

    begun = time.monotonic()
    running = asyncio.create_task(together.ended(call(1), after(0.01, "other")))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="no answer"):
        await together.ended(call(0), fails())
    assert not running.done(), "it waited for the other one"
    assert await running == "other"
    assert time.monotonic() - begun < 5


async def test_outcome_is_returned_although_its_wait_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that shuts down cancels what it runs; the outcome is stored by then."""
    monkeypatch.setattr("turnsaga.tool_activities._together._WAIT_S", 60)
    together = Together()
    other = asyncio.create_task(together.ended(call(1), after(60, "later")))
    waiting = asyncio.create_task(together.ended(call(0), after(0, "stored")))
    await asyncio.sleep(0.01)
    waiting.cancel()

    assert await waiting == "stored"
    other.cancel()


async def test_replies_that_have_ended_are_forgotten() -> None:
    together = Together()
    await asyncio.gather(*(together.ended(call(index), after(0, "x")) for index in range(3)))

    assert together._replies == {}
