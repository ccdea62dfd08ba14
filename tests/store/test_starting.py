"""Starts, and who may see what."""

import asyncio

import pytest

from tests.store.ledgers import (
    ADA,
    BOB,
    EVE,
    Ledger,
    new_turn,
)
from turnsaga.errors import (
    NotFound,
    StartConflict,
    TurnInProgress,
)
from turnsaga.ledger import TurnState
from turnsaga.models import FenceRequest


async def test_same_start_is_the_same_turn_and_another_body_is_refused(ledger: Ledger) -> None:
    first = await ledger.store.start_turn(new_turn(ADA, "c", "k"))
    again = await ledger.store.start_turn(new_turn(ADA, "c", "k"))

    assert (first.created, again.created) == (True, False)
    assert first.ref == again.ref
    with pytest.raises(StartConflict):
        await ledger.store.start_turn(new_turn(ADA, "c", "k", message="other"))


async def test_one_turn_of_a_conversation_runs_at_a_time(ledger: Ledger) -> None:
    first = await ledger.turn(conversation="c")

    with pytest.raises(TurnInProgress, match=first.turn):
        await ledger.turn(conversation="c")
    await ledger.store.complete_turn(first)
    await ledger.turn(conversation="c")


async def test_two_starts_at_once_are_one_turn_and_one_refusal(ledger: Ledger) -> None:
    results = await asyncio.gather(
        *(ledger.store.start_turn(new_turn(ADA, "c", f"k{n}")) for n in range(8)), return_exceptions=True
    )

    assert sum(isinstance(result, TurnInProgress) for result in results) == 7


async def test_conversation_of_the_same_name_is_another_user_s_own(ledger: Ledger) -> None:
    mine = await ledger.turn(conversation="c")
    theirs = await ledger.turn(conversation="c", who=BOB)
    elsewhere = await ledger.turn(conversation="c", who=EVE)

    assert len({mine.turn, theirs.turn, elsewhere.turn}) == 3


async def test_foreign_things_are_answered_like_unknown_ones(ledger: Ledger) -> None:
    ref = await ledger.turn()
    effect = await ledger.commit(ref)
    key = (await ledger.store.load_effect(effect)).key

    for who in (BOB, EVE):
        with pytest.raises(NotFound):
            await ledger.store.turn_view(who, ref.turn)
        with pytest.raises(NotFound):
            await ledger.store.event_page(who, ref.turn, after=0)
        with pytest.raises(NotFound):
            await ledger.store.effect_view(who, effect.effect)
        with pytest.raises(NotFound):
            await ledger.store.effect_by_key(who, key)
        with pytest.raises(NotFound):
            await ledger.store.acknowledge(who, effect.effect)
        with pytest.raises(NotFound):
            await ledger.store.fence(
                FenceRequest(tenant=who.tenant, turn=ref.turn, cause="abort", via="api"), owner=who
            )
    assert await ledger.store.conversation_effects(BOB, "c1") == ()
    assert (await ledger.store.turn_view(ADA, ref.turn)).state is TurnState.RUNNING
