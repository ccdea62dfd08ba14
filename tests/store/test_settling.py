"""Settling: release, undo, and what is followed afterwards."""

from datetime import timedelta

import pytest

from tests.store.ledgers import ADA, APPLIED, REFUSED, Ledger, undo_claim
from turnsaga.errors import (
    IllegalTransition,
)
from turnsaga.ledger import State, TurnState
from turnsaga.models import EffectRef
from turnsaga.settle import OnUnknown
from turnsaga.store import (
    UndoOutcome,
)
from turnsaga.tools import CommitPolicy, Policy


async def test_settling_releases_undoes_in_reverse_and_closes_the_turn(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=3)
    effects = [await ledger.commit(ref, index) for index in range(2)]
    await ledger.fence(ref)
    undone = []
    while True:
        answer = await ledger.store.next_steps(ref)
        if answer.settled:
            break
        [step] = answer.steps
        assert step.action == "undo"
        row, may = undo_claim(
            await ledger.store.claim_undo(EffectRef(tenant=ref.tenant, turn=ref.turn, effect=step.effect))
        )
        assert may
        await ledger.store.record_undo(row.ref, row.token, UndoOutcome(undone=True, evidence={"e": 1}))
        undone.append(step.effect)

    assert undone == [effects[1].effect, effects[0].effect]
    assert (await ledger.store.turn_view(ADA, ref.turn)).state is TurnState.ABORTED
    assert (await ledger.kinds(ref))[-1] == "turn_settled"


async def test_turn_that_runs_can_t_be_settled(ledger: Ledger) -> None:
    ref = await ledger.turn()

    with pytest.raises(IllegalTransition):
        await ledger.store.next_steps(ref)


async def test_undo_isn_t_claimed_on_a_turn_that_runs_or_beside_doubt(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    effect = await ledger.commit(ref, 0)
    _, while_running = undo_claim(await ledger.store.claim_undo(effect))
    await ledger.claim(ref, 1)
    await ledger.fence(ref)
    _, beside_doubt = undo_claim(await ledger.store.claim_undo(effect))

    assert (while_running, beside_doubt) == (False, False)
    assert await ledger.state(effect) is State.COMMITTED


async def test_undo_that_died_before_its_claim_ends_by_way_of_one(ledger: Ledger) -> None:
    ref = await ledger.turn()
    effect = await ledger.commit(ref)
    await ledger.fence(ref)
    answer = await ledger.store.next_steps(ref, given_up=[effect.effect])
    kinds = await ledger.kinds(ref)

    assert answer.settled
    assert await ledger.state(effect) is State.COMPENSATION_FAILED
    assert kinds[-3:] == ["tool_compensating", "tool_attention", "turn_settled"]


async def test_undo_whose_key_dies_with_it_waits_until_no_request_can_land(ledger: Ledger) -> None:
    ref = await ledger.turn()
    await ledger.claim(ref, key_dies_with_undo=True)
    second = await ledger.claim(ref)
    assert second.row is not None
    await ledger.store.record_commit(second.row.ref, second.row.token, APPLIED)
    await ledger.fence(ref)
    early = await ledger.store.next_steps(ref)
    ledger.clock.pass_(16)
    late = await ledger.store.next_steps(ref)

    assert [step.action for step in early.steps] == ["wait"]
    assert 0 < early.steps[0].wait_ms <= 15_001
    assert [step.action for step in late.steps] == ["undo"]


async def test_undo_that_was_done_is_believed_of_whichever_attempt_says_so(ledger: Ledger) -> None:
    """Two runs that settle one turn take each other's claims; else neither's answer would ever count."""
    ref = await ledger.turn()
    effect = await ledger.commit(ref)
    await ledger.fence(ref)
    await ledger.store.claim_undo(effect)
    first = await ledger.store.load_effect(effect)
    await ledger.store.claim_undo(effect)
    second = await ledger.store.load_effect(effect)
    for told in (UndoOutcome(error="no"), UndoOutcome(again=True, error="no"), UndoOutcome(overtaken=True)):
        await ledger.store.record_undo(effect, first.token, told)
    unmoved = await ledger.store.load_effect(effect)
    done = await ledger.store.record_undo(
        effect, first.token, UndoOutcome(undone=True, evidence={"refund": "re_1"})
    )
    late = await ledger.store.record_undo(effect, second.token, UndoOutcome(error="no"))

    assert first.token != second.token
    assert unmoved == second
    assert done.row.state is late.row.state is State.COMPENSATED
    assert (await ledger.kinds(ref)).count("tool_compensated") == 1


async def test_late_evidence_in_a_settled_turn_puts_it_on_the_sweeper_s_list(ledger: Ledger) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref, keyed=False, can_look_up=False, max_sends=1)
    assert claim.row is not None
    await ledger.fence(ref)
    settled = await ledger.store.next_steps(ref)
    await ledger.store.record_commit(claim.row.ref, claim.row.token, APPLIED)
    listed = await ledger.store.turns_to_sweep(before=ledger.clock.now, limit=10)
    again = await ledger.store.next_steps(ref)

    assert settled.settled, "it is shown as open, and doesn't hold up the rest"
    assert [(turn.ref, turn.ended) for turn in listed] == [(ref, True)]
    assert [step.action for step in again.steps] == ["undo"]


async def test_repeated_refusal_of_an_undo_counts_once_under_its_token(ledger: Ledger) -> None:
    """Who got no answer asks again. Counted twice, it would stand for a later undo that got none."""
    ref = await ledger.turn()
    effect = await ledger.commit(ref, undo_keyed=False, max_undo_sends=3)
    await ledger.fence(ref)
    first, _ = undo_claim(await ledger.store.claim_undo(effect))
    refused = UndoOutcome(again=True, error="busy")
    for _ in range(2):
        await ledger.store.record_undo(effect, first.token, refused)
    second, may_again = undo_claim(await ledger.store.claim_undo(effect))
    third, may_after_silence = undo_claim(await ledger.store.claim_undo(effect))

    assert (second.undo_sends, second.undo_refusals, may_again) == (2, 1, True)
    assert (third.state, may_after_silence) == (State.COMPENSATION_FAILED, False)


async def test_fence_says_what_is_undone_first_where_that_is_clear(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=3)
    await ledger.commit(ref, 0)
    last = await ledger.commit(ref, 1)
    waiting = await ledger.claim(ref, 2, policy=Policy(CommitPolicy.CONFIRMED))
    fenced = await ledger.fence(ref)
    again = await ledger.fence(ref)

    assert fenced.next is not None
    assert [(step.action, step.effect) for step in fenced.next.steps] == [("undo", last.effect)]
    assert (fenced.next.settled, fenced.next.state) == (False, TurnState.ABORTING)
    assert waiting.row is not None
    assert [(brief.effect, brief.state) for brief in fenced.next.briefs] == [
        (waiting.row.effect, State.RELEASED)
    ]
    assert fenced.briefs == fenced.next.briefs
    assert (again.first, again.next, again.briefs) == (False, None, ())


async def test_fence_leaves_the_question_open_while_a_call_is_in_flight(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    await ledger.commit(ref, 0)
    await ledger.claim(ref, 1)

    assert (await ledger.fence(ref)).next is None


async def test_fence_doesn_t_ask_for_the_undo_of_what_is_in_flight(ledger: Ledger) -> None:
    """Its tool undoes what nobody knows of; whose call is under way is waited for all the same."""
    ref = await ledger.turn()
    await ledger.claim(ref, on_unknown=OnUnknown.COMPENSATE)

    assert (await ledger.fence(ref)).next is None


async def test_fence_leaves_the_question_open_where_the_ledger_has_to_act(ledger: Ledger) -> None:
    nothing_done = await ledger.turn()
    irreversible = await ledger.turn()
    await ledger.commit(irreversible, reversible=False)

    for ref in (nothing_done, irreversible):
        assert (await ledger.fence(ref)).next is None


async def test_outcome_is_written_over_the_row_that_its_claim_left(ledger: Ledger) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    stored = await ledger.store.record_commit(claim.row.ref, claim.row.token, APPLIED, claimed=claim.row)

    assert stored == await ledger.store.load_effect(claim.row.ref)
    assert (stored.state, stored.commit_order) == (State.COMMITTED, 1)


async def test_outcome_of_a_row_that_has_moved_since_its_claim_is_judged_by_what_it_is_now(
    ledger: Ledger,
) -> None:
    ref = await ledger.turn(calls=2)
    claim = await ledger.claim(ref)
    assert claim.row is not None
    # A straggler's worker kept its window open, and a look-up took the claim away.
    await ledger.store.keep_open(claim.row.ref, ledger.clock.now + timedelta(minutes=5))
    await ledger.store.begin_lookup(claim.row.ref)
    refused = await ledger.store.record_commit(claim.row.ref, claim.row.token, REFUSED, claimed=claim.row)
    applied = await ledger.store.record_commit(claim.row.ref, claim.row.token, APPLIED, claimed=claim.row)
    other = await ledger.store.load_effect(await ledger.commit(ref, 1))

    assert refused.state is State.UNKNOWN, "a stale token's refusal counts for nothing"
    assert applied.state is State.COMMITTED, "and its success is evidence"
    assert (applied.commit_order, other.commit_order) == (1, 2)


async def test_undo_of_a_row_that_has_moved_since_its_claim_is_judged_by_what_it_is_now(
    ledger: Ledger,
) -> None:
    ref = await ledger.turn()
    effect = await ledger.commit(ref)
    await ledger.fence(ref)
    first, _ = undo_claim(await ledger.store.claim_undo(effect))
    second, _ = undo_claim(await ledger.store.claim_undo(effect))
    refused = await ledger.store.record_undo(effect, first.token, UndoOutcome(error="no"), claimed=first)
    undone = await ledger.store.record_undo(
        effect, first.token, UndoOutcome(undone=True, evidence={"e": 1}), claimed=first
    )

    assert second.token > first.token
    assert (refused.row.state, refused.next) == (State.COMPENSATING, None)
    assert undone.row.state is State.COMPENSATED
    assert undone.next is not None
    assert undone.next.settled
