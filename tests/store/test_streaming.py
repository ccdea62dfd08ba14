"""Who writes a step's text: one attempt at a time, and of two the one that was started later."""

from datetime import timedelta

import pytest

from tests.store.ledgers import ADA, Ledger, new_turn
from turnsaga.errors import StaleStep
from turnsaga.models import StepRef
from turnsaga.store import NewReply, Writer

REPLY = NewReply(text="second", finish="stop", input_tokens=1, output_tokens=1, calls=())


def writers(ledger: Ledger) -> tuple[Writer, Writer]:
    """Return two attempts of one request: of the run before a reset, and of the one after."""
    first = Writer(ledger.clock.now, "run-z", 1)
    return first, Writer(first.started + timedelta(seconds=2), "run-a", 1)


async def step_of(ledger: Ledger) -> StepRef:
    return ledger.step((await ledger.store.start_turn(new_turn(ADA, "c", "k"))).ref)


async def seen(ledger: Ledger, step: StepRef) -> list[str]:
    page = await ledger.store.event_page(ADA, step.turn, after=0)
    return [str(event.data.get("text", event.kind)) for event in page.events][1:]


async def test_text_of_an_earlier_attempt_is_void_once_a_later_one_writes(ledger: Ledger) -> None:
    step, (first, second) = await step_of(ledger), writers(ledger)
    for by, text in ((first, "one"), (first, "two"), (second, "three"), (second, "four")):
        assert await ledger.store.append_text(step, text, by=by)

    assert await seen(ledger, step) == ["one", "two", "step_restarted", "three", "four"]


async def test_earlier_attempt_that_wakes_up_writes_nothing_more(ledger: Ledger) -> None:
    step, (first, second) = await step_of(ledger), writers(ledger)
    await ledger.store.append_text(step, "one", by=first)
    await ledger.store.append_text(step, "two", by=second)
    with pytest.raises(StaleStep):
        await ledger.store.append_text(step, "late", by=first)
    with pytest.raises(StaleStep):
        await ledger.store.restart_step(step, 2, by=first)
    with pytest.raises(StaleStep):
        await ledger.store.record_reply(step, REPLY, by=first)
    assert await ledger.store.record_reply(step, REPLY, by=second)

    assert await seen(ledger, step) == ["one", "step_restarted", "two"]


async def test_restart_is_said_once_and_by_a_reply_without_text_too(ledger: Ledger) -> None:
    step, (first, second) = await step_of(ledger), writers(ledger)
    third = Writer(second.started, second.run, 2)
    await ledger.store.append_text(step, "one", by=first)
    assert await ledger.store.restart_step(step, 1, by=second)
    await ledger.store.append_text(step, "two", by=second)
    await ledger.store.record_reply(step, REPLY, by=third)

    assert await seen(ledger, step) == ["one", "step_restarted", "two", "step_restarted"]


async def test_next_step_is_anybody_s(ledger: Ledger) -> None:
    step, (first, second) = await step_of(ledger), writers(ledger)
    await ledger.store.append_text(step, "one", by=second)
    await ledger.store.append_text(step.model_copy(update={"step": 2}), "two", by=first)

    assert await seen(ledger, step) == ["one", "two"]
