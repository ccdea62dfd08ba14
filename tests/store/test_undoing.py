"""Whose undo may be sent: again, unasked, or not before somebody has looked."""

from datetime import timedelta
from typing import Any

import pytest

from tests.store.ledgers import ADA, APPLIED, LOST, Ledger, undo_claim
from turnsaga.ledger import State
from turnsaga.models import EffectRef, Ruling, RulingWord, TurnRef
from turnsaga.settle import OnUnknown
from turnsaga.store import UndoOutcome, UndoVerdict

UNKEYED = {"undo_keyed": False}
READABLE = {"undo_keyed": False, "can_check_undone": True}
UNDONE = UndoOutcome(undone=True, evidence={"e": 1})


async def lost_undo(ledger: Ledger, **declared: Any) -> EffectRef:
    """Return an effect whose undo was sent, and gave no answer."""
    ref = await ledger.turn()
    effect = await ledger.commit(ref, **declared)
    await ledger.fence(ref)
    assert (await ledger.store.claim_undo(effect)).sends
    return effect


async def unknown(ledger: Ledger, ref: TurnRef, index: int = 0, **declared: Any) -> EffectRef:
    """Return an effect whose commit gave no answer, and that its tool undoes then."""
    claim = await ledger.claim(ref, index, **{"on_unknown": OnUnknown.COMPENSATE, **declared})
    assert claim.row is not None
    await ledger.store.record_commit(claim.row.ref, claim.row.token, LOST)
    return claim.row.ref


# ---------------------------------------------------------------- an undo without an answer


async def test_unkeyed_undo_without_an_answer_is_a_person_s_where_nothing_can_be_read_back(
    ledger: Ledger,
) -> None:
    effect = await lost_undo(ledger, **UNKEYED)
    claim = await ledger.store.claim_undo(effect)

    assert claim.verdict is UndoVerdict.STORED
    assert claim.row.state is State.COMPENSATION_FAILED


async def test_unkeyed_undo_without_an_answer_is_read_back_before_anything_is_sent(ledger: Ledger) -> None:
    effect = await lost_undo(ledger, **READABLE)
    claim = await ledger.store.claim_undo(effect)
    recorded = await ledger.store.record_undo(effect, claim.row.token, UNDONE)

    assert claim.verdict is UndoVerdict.ASK
    assert claim.row.undo_sends == 1
    assert recorded.row.state is State.COMPENSATED


async def test_denial_counts_only_once_no_undo_can_land_any_more(ledger: Ledger) -> None:
    """Send-by is 5 s after the claim, and the landing window 10 s after that."""
    effect = await lost_undo(ledger, **READABLE)
    ledger.clock.pass_(14.9)
    early = await ledger.store.claim_undo(effect)
    still = await ledger.store.deny_undo(effect, early.row.token, asked_at=ledger.clock.now)
    ledger.clock.pass_(0.2)
    # What counts is when it was asked.
    asked_at = ledger.clock.now - timedelta(seconds=0.2)
    told_late = await ledger.store.deny_undo(effect, early.row.token, asked_at=asked_at)
    late = await ledger.store.claim_undo(effect)
    denied = await ledger.store.deny_undo(effect, late.row.token, asked_at=ledger.clock.now)
    again = await ledger.store.claim_undo(effect)

    assert (still.undo_refusals, told_late.undo_refusals, denied.undo_refusals) == (0, 0, 1)
    assert [claim.verdict for claim in (early, late, again)] == ["ask", "ask", "send"]
    assert again.row.undo_sends == 2


async def test_denial_under_a_stale_token_writes_nothing(ledger: Ledger) -> None:
    effect = await lost_undo(ledger, **READABLE)
    ledger.clock.pass_(60)
    first = await ledger.store.claim_undo(effect)
    await ledger.store.claim_undo(effect)
    stale = await ledger.store.deny_undo(effect, first.row.token, asked_at=ledger.clock.now)

    assert stale.undo_refusals == 0


async def test_budget_that_is_spent_ends_with_a_look_and_not_with_a_guess(ledger: Ledger) -> None:
    """Two sends are allowed; the second got no answer either."""
    effect = await lost_undo(ledger, can_check_undone=True)
    second = await ledger.store.claim_undo(effect)
    third = await ledger.store.claim_undo(effect)
    ledger.clock.pass_(60)
    await ledger.store.deny_undo(effect, third.row.token, asked_at=ledger.clock.now)
    fourth = await ledger.store.claim_undo(effect)

    assert [claim.verdict for claim in (second, third, fourth)] == ["send", "ask", "stored"]
    assert fourth.row.state is State.COMPENSATION_FAILED


async def test_undo_that_the_system_is_still_at_uses_up_no_budget(ledger: Ledger) -> None:
    """Two sends are allowed."""
    effect = await lost_undo(ledger)
    for _ in range(5):
        claim = await ledger.store.claim_undo(effect)
        assert claim.sends
        await ledger.store.record_undo(effect, claim.row.token, UndoOutcome(running=True))
    last = await ledger.store.claim_undo(effect)
    recorded = await ledger.store.record_undo(effect, last.row.token, UNDONE)

    assert recorded.row.state is State.COMPENSATED


async def test_call_that_can_t_be_stopped_keeps_its_undo_in_doubt(ledger: Ledger) -> None:
    effect = await lost_undo(ledger, **READABLE)
    ledger.clock.pass_(60)
    await ledger.store.keep_undo_open(effect, ledger.clock.now)
    claim = await ledger.store.claim_undo(effect)
    denied = await ledger.store.deny_undo(effect, claim.row.token, asked_at=ledger.clock.now)

    assert denied.undo_refusals == 0


# ---------------------------------------------------------------- unknown, and undone unasked


async def test_unknown_is_undone_unasked_in_a_turn_that_runs_and_holds_up_nobody(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    effect = await unknown(ledger, ref)
    beside = await ledger.claim(ref, 1)
    asked = await ledger.store.undecided(ledger.call(ref))
    row, may = undo_claim(await ledger.store.claim_undo(effect))
    recorded = await ledger.store.record_undo(effect, row.token, UNDONE)
    assert beside.row is not None
    await ledger.store.record_commit(beside.row.ref, beside.row.token, APPLIED)

    assert [step.action for step in asked.steps] == ["undo"]
    assert may
    assert (recorded.row.state, recorded.next) == (State.COMPENSATED, None)
    assert (await ledger.store.complete_turn(ref)).settled


async def test_turn_isn_t_completed_while_such_an_undo_is_under_way(ledger: Ledger) -> None:
    ref = await ledger.turn()
    effect = await unknown(ledger, ref)
    await ledger.store.claim_undo(effect)
    answer = await ledger.store.complete_turn(ref)

    assert not answer.settled
    assert [step.action for step in answer.steps] == ["undo"]


async def test_unknown_comes_first_among_the_undos_of_a_stopped_turn(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=3)
    before = await ledger.commit(ref, 0)
    effect = await unknown(ledger, ref, 1)
    asked = await unknown(ledger, ref, 2, on_unknown=OnUnknown.RESOLVE)
    await ledger.fence(ref)
    first = await ledger.store.next_steps(ref)
    _, beside_doubt = undo_claim(await ledger.store.claim_undo(effect))
    looked = await ledger.store.begin_lookup(asked)
    ledger.clock.pass_(60)
    await ledger.store.record_lookup(asked, looked.token, None, asked_at=ledger.clock.now)
    second = await ledger.store.next_steps(ref)
    row, _ = undo_claim(await ledger.store.claim_undo(effect))
    third = (await ledger.store.record_undo(effect, row.token, UNDONE)).next

    assert [(step.action, step.effect) for step in first.steps] == [("look_up", asked.effect)]
    assert not beside_doubt
    assert [(step.action, step.effect) for step in second.steps] == [("undo", effect.effect)]
    assert third is not None
    assert [(step.action, step.effect) for step in third.steps] == [("undo", before.effect)]


async def test_claim_that_died_is_undone_unasked_too(ledger: Ledger) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref, on_unknown=OnUnknown.COMPENSATE)
    assert claim.row is not None
    await ledger.fence(ref)
    row, may = undo_claim(await ledger.store.claim_undo(claim.row.ref))
    late = await ledger.store.record_commit(claim.row.ref, claim.row.token, APPLIED)

    assert (row.state, may) == (State.COMPENSATING, True)
    assert late.state is State.COMPENSATING, "its undo stops what lands late, or undoes it"


async def test_what_is_a_person_s_is_neither_asked_about_nor_sent_again(ledger: Ledger) -> None:
    ref = await ledger.turn()
    effect = await unknown(ledger, ref, on_unknown=OnUnknown.PERSON)
    running = await ledger.store.undecided(ledger.call(ref))
    await ledger.fence(ref)
    settled = await ledger.store.next_steps(ref)
    row = await ledger.store.load_effect(effect)

    assert (running.steps, settled.steps, settled.settled) == ((), (), True)
    assert row.needs_attention
    assert (await ledger.store.owned_steps(ref)).steps == ()
    assert await ledger.store.turns_to_sweep(before=ledger.clock.now, limit=9) == ()


# ---------------------------------------------------------------- an undo that fails, and halts


@pytest.mark.parametrize("word", ["undone", "stands"])
async def test_those_before_an_undo_that_failed_wait_and_go_on_after_a_person_s_word(
    ledger: Ledger, word: RulingWord
) -> None:
    ref = await ledger.turn(calls=4)
    first = await ledger.commit(ref, 0)
    second = await ledger.commit(ref, 1)
    halting = await ledger.commit(ref, 2, halts=True)
    last = await ledger.commit(ref, 3)
    await ledger.fence(ref)
    answer = None
    for effect, outcome in ((last, UNDONE), (halting, UndoOutcome(error="the vault is closed"))):
        row, may = undo_claim(await ledger.store.claim_undo(effect))
        assert may
        answer = (await ledger.store.record_undo(effect, row.token, outcome)).next
    view = await ledger.store.turn_view(ADA, ref.turn)
    waiting = {effect.effect: effect for effect in view.effects}
    before = await ledger.store.turns_to_sweep(before=ledger.clock.now, limit=9)
    await ledger.store.resolve(
        Ruling(tenant=ref.tenant, effect=halting.effect, word=word, note="looked", by="acme/ops", via="api")
    )
    swept = await ledger.store.turns_to_sweep(before=ledger.clock.now, limit=9)
    undone: list[EffectRef] = []
    while (then := await ledger.store.next_steps(ref)).steps:
        [step] = then.steps
        effect = EffectRef(tenant=ref.tenant, turn=ref.turn, effect=step.effect)
        row, may = undo_claim(await ledger.store.claim_undo(effect))
        await ledger.store.record_undo(effect, row.token, UNDONE)
        undone.append(effect)

    assert answer is not None
    assert answer.settled
    assert view.settlement is not None
    assert view.settlement.committed == (first.effect, second.effect)
    assert "waits for a person" in waiting[second.effect].summary
    assert "note 2" in (waiting[first.effect].no_undo_reason or "")
    assert before == ()
    assert [turn.ref for turn in swept] == [ref]
    assert undone == [second, first]
    assert await ledger.store.turns_to_sweep(before=ledger.clock.now, limit=9) == ()


async def test_those_after_an_undo_that_halts_are_undone_all_the_same(ledger: Ledger) -> None:
    """One that landed late was committed after it, so its undo doesn't wait."""
    ref = await ledger.turn(calls=2)
    halting = await ledger.commit(ref, 0, halts=True)
    once = {"keyed": False, "can_look_up": False, "max_sends": 1}
    claim = await ledger.claim(ref, 1, **once)
    assert claim.row is not None
    await ledger.store.record_commit(claim.row.ref, claim.row.token, LOST)
    await ledger.fence(ref)
    await ledger.store.next_steps(ref)
    row, _ = undo_claim(await ledger.store.claim_undo(halting))
    await ledger.store.record_undo(halting, row.token, UndoOutcome(error="closed"))
    await ledger.store.record_commit(claim.row.ref, claim.row.token, APPLIED)
    answer = await ledger.store.next_steps(ref)

    assert [(step.action, step.effect) for step in answer.steps] == [("undo", claim.row.effect)]
