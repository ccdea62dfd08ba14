"""The gate, the fence, and what holds an effect back."""

import asyncio
import random

import pytest
import structlog

from tests.store.ledgers import (
    ADA,
    APPLIED,
    EVE,
    LOST,
    Clock,
    Ledger,
)
from turnsaga.errors import InvalidRequest
from turnsaga.ledger import State, TurnState
from turnsaga.models import TurnRef
from turnsaga.store import (
    CallContext,
    NewEffect,
    SqlStore,
    Verdict,
    load_object,
)


async def test_no_gate_opens_and_nothing_is_prepared_after_the_fence(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    await ledger.claim(ref, 0)
    await ledger.fence(ref)
    claim = await ledger.claim(ref, 1)

    assert claim.verdict is Verdict.FENCED
    assert claim.row is None
    assert await ledger.store.append_text(ledger.step(ref), "more") is False
    assert (await ledger.kinds(ref))[-1] == "turn_aborting"


async def test_first_fence_counts_and_an_ended_turn_takes_none(ledger: Ledger) -> None:
    ref = await ledger.turn()
    answers = [await ledger.fence(ref, cause) for cause in ("abort", "failure", "abort")]
    ended = await ledger.turn()
    await ledger.store.complete_turn(ended)

    assert [(answer.first, answer.state.value) for answer in answers] == [
        (True, "aborting"),
        (False, "aborting"),
        (False, "aborting"),
    ]
    assert (await ledger.fence(ended)).state is TurnState.COMPLETED


async def test_completed_is_refused_once_fenced(ledger: Ledger) -> None:
    ref = await ledger.turn()
    await ledger.fence(ref)
    answer = await ledger.store.complete_turn(ref)

    assert not answer.settled
    assert answer.state is TurnState.ABORTING


async def test_turn_with_an_effect_in_doubt_isn_t_completed(ledger: Ledger) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    await ledger.store.record_commit(claim.row.ref, claim.row.token, LOST)
    answer = await ledger.store.complete_turn(ref)

    assert not answer.settled
    assert [step.action for step in answer.steps] == ["send_again"]


async def test_fence_races_with_gates_and_completion_on_many_turns(ledger: Ledger) -> None:
    """Whoever is first wins, and the events say who it was."""
    order = random.Random(7)

    async def race(number: int) -> TurnRef:
        ref = await ledger.turn(calls=4, conversation=f"race{number}")
        work = [ledger.claim(ref, index) for index in range(4)] + [ledger.fence(ref)]
        order.shuffle(work)
        await asyncio.gather(*work)
        await ledger.store.complete_turn(ref)
        return ref

    for ref in await asyncio.gather(*(race(number) for number in range(40))):
        kinds = await ledger.kinds(ref)
        after = kinds[kinds.index("turn_aborting") + 1 :]
        assert "tool_committing" not in after
        assert "tool_prepared" not in after
        assert (await ledger.store.turn_view(ADA, ref.turn)).state is TurnState.ABORTING


async def test_events_are_contiguous_under_parallel_writers(url: str) -> None:
    """Sixteen processes' worth of writers, each with connections of its own."""
    stores = [SqlStore(url, connections=2) for _ in range(16)]
    await stores[0].open()
    ledger = Ledger(stores[0], Clock())
    refs = [await ledger.turn(conversation=f"w{n}") for n in range(4)]
    await asyncio.gather(
        *(
            store.append_text(ledger.step(ref), f"{index}")
            for index, store in enumerate(stores)
            for ref in refs
            for _ in range(5)
        )
    )
    kinds = [await ledger.kinds(ref) for ref in refs]
    await asyncio.gather(*(store.close() for store in stores))

    assert [each.count("text_delta") for each in kinds] == [80] * 4


async def test_repeat_of_a_call_is_the_same_effect(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    first = await ledger.claim(ref, 0, arguments={"same": 1})
    second = await ledger.claim(ref, 1, arguments={"same": 1})

    assert second.verdict is Verdict.REPEATED
    assert first.row is not None
    assert second.row is not None
    assert first.row.effect == second.row.effect


async def test_second_commit_on_an_unsettled_identity_is_held_and_can_be_released(ledger: Ledger) -> None:
    ref = await ledger.turn()
    other = await ledger.turn()
    first = await ledger.claim(ref, identity="INV-7")
    held = await ledger.claim(other, identity="INV-7")
    again = await ledger.claim(other)
    assert first.row is not None
    assert held.row is not None
    await ledger.store.record_commit(first.row.ref, first.row.token, APPLIED)
    outdated = await ledger.claim(other)
    free = await ledger.claim_anew(other)

    verdicts = (held.verdict, again.verdict, outdated.verdict, free.verdict)
    assert verdicts == (Verdict.BUSY, Verdict.BUSY, Verdict.OUTDATED, Verdict.SEND)
    assert held.row.held_for == "resource"
    assert (await ledger.kinds(other)).count("tool_held") == 1
    assert free.row is not None
    assert free.row.held_for is None


async def test_identity_counts_per_system_and_tenant(ledger: Ledger) -> None:
    ref = await ledger.turn()
    await ledger.claim(ref, identity="INV-7")
    elsewhere = await ledger.turn(who=EVE)
    another_system = await ledger.turn()

    assert (await ledger.claim(elsewhere, identity="INV-7")).verdict is Verdict.SEND
    assert (await ledger.claim(another_system, identity="INV-7", system="other")).verdict is Verdict.SEND


async def test_resource_is_free_when_the_earlier_turn_has_ended(ledger: Ledger) -> None:
    earlier, later = await ledger.turn(), await ledger.turn()
    effect = await ledger.commit(earlier, resources=("r",))
    while_it_runs = await ledger.claim(later, resources=("r",))
    await ledger.store.complete_turn(earlier)
    after = await ledger.claim(later)
    anew = await ledger.claim_anew(later, request={"on": "what is there now"})

    assert await ledger.state(effect) is State.COMMITTED
    assert (while_it_runs.verdict, after.verdict, anew.verdict) == (
        Verdict.BUSY,
        Verdict.OUTDATED,
        Verdict.SEND,
    )
    assert anew.row is not None
    assert load_object(anew.row.request) == {"on": "what is there now"}


async def test_dropped_effect_frees_its_resource(ledger: Ledger) -> None:
    first, second, third = await ledger.turn(), await ledger.turn(), await ledger.turn()
    await ledger.claim(first, resources=("r",))
    held = await ledger.claim(second, resources=("r",))
    assert held.row is not None
    await ledger.store.drop(held.row.ref, "waited too long")
    blocked = await ledger.claim(third, resources=("r",))

    assert await ledger.state(held.row.ref) is State.RELEASED
    assert blocked.verdict is Verdict.BUSY, "the first one is still being committed"


async def test_effect_whose_gate_opens_at_once_is_seen_as_prepared_and_then_as_claimed(
    ledger: Ledger,
) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    page = await ledger.store.event_page(ADA, ref.turn, after=0)
    told = [event for event in page.events if event.kind.startswith("tool_")]

    assert claim.row == await ledger.store.load_effect(claim.row.ref)
    assert (claim.row.version, claim.row.token, claim.row.sends) == (2, 1, 1)
    assert [(event.kind, event.data["version"]) for event in told] == [
        ("tool_prepared", 1),
        ("tool_committing", 2),
    ]


async def test_transaction_that_fails_leaves_nothing_behind_for_the_next(ledger: Ledger) -> None:
    ref = await ledger.turn()
    before = await ledger.kinds(ref)

    def fails(_: CallContext) -> NewEffect:
        raise InvalidRequest("arguments", "they don't fit")

    for _ in range(3):
        with pytest.raises(InvalidRequest, match="they don't fit"):
            await ledger.store.draft_and_claim(ledger.call(ref), fails)
    with structlog.testing.capture_logs() as lines:
        kinds = await ledger.kinds(ref)
        claim = await ledger.claim(ref)

    assert kinds == before
    assert claim.verdict is Verdict.SEND
    assert lines == [], "it found the connection in a transaction, and took another one"
