"""Tokens, outcomes and look-ups."""

from datetime import timedelta

import pytest

from tests.store.ledgers import (
    APPLIED,
    LOST,
    REFUSED,
    Ledger,
)
from turnsaga.ledger import State
from turnsaga.models import CallPlan
from turnsaga.store import (
    CommitOutcome,
    Verdict,
)


async def test_stale_token_writes_nothing(ledger: Ledger) -> None:
    ref = await ledger.turn()
    first = await ledger.claim(ref)
    second = await ledger.claim(ref)
    assert first.row is not None
    assert second.row is not None
    row = await ledger.store.record_commit(first.row.ref, first.row.token, REFUSED)

    assert second.verdict is Verdict.SEND
    assert row.state is State.COMMITTING
    assert row.token == second.row.token


async def test_definite_answer_under_a_stale_token_is_evidence_for_an_unknown_row(ledger: Ledger) -> None:
    ref = await ledger.turn()
    first = await ledger.claim(ref, keyed=False, max_sends=1)
    assert first.row is not None
    await ledger.claim(ref)
    before = await ledger.state(first.row.ref)
    row = await ledger.store.record_commit(first.row.ref, first.row.token, APPLIED)

    assert before is State.UNKNOWN
    assert row.state is State.COMMITTED


@pytest.mark.parametrize("later", [0, 16])
async def test_not_applied_settles_only_if_no_other_attempt_passed_the_gate(
    ledger: Ledger, later: float
) -> None:
    """Past the landing window the first request can't land any more; it may have landed before."""
    ref = await ledger.turn()
    await ledger.claim(ref, can_look_up=False)
    second = await ledger.claim(ref)
    assert second.row is not None
    ledger.clock.pass_(later)
    row = await ledger.store.record_commit(second.row.ref, second.row.token, REFUSED)

    assert row.state is State.UNKNOWN

    ref = await ledger.turn()
    only = await ledger.claim(ref)
    assert only.row is not None
    row = await ledger.store.record_commit(only.row.ref, only.row.token, REFUSED)

    assert row.state is State.FAILED


async def test_once_is_never_claimed_a_second_time(ledger: Ledger) -> None:
    ref = await ledger.turn()
    first = await ledger.claim(ref, keyed=False, max_sends=1)
    second = await ledger.claim(ref)

    assert (first.verdict, second.verdict) == (Verdict.SEND, Verdict.STORED)
    assert second.row is not None
    assert second.row.state is State.UNKNOWN


async def test_keyed_claims_end_with_the_budget_and_with_the_key_s_life(ledger: Ledger) -> None:
    ref = await ledger.turn()
    verdicts = [(await ledger.claim(ref)).verdict for _ in range(4)]
    late = await ledger.turn()
    await ledger.claim(late, key_life_ms=60_000)
    ledger.clock.pass_(50)
    too_late = await ledger.claim(late)

    assert verdicts == [Verdict.SEND, Verdict.SEND, Verdict.SEND, Verdict.STORED]
    assert too_late.verdict is Verdict.STORED, "it could land after the key is forgotten"


async def test_irreversible_effect_isn_t_sent_again_after_the_fence(ledger: Ledger) -> None:
    for reversible, look_up, verdict in (
        (False, False, Verdict.STORED),
        (True, True, Verdict.STORED),
        (True, False, Verdict.SEND),
    ):
        ref = await ledger.turn()
        await ledger.claim(ref, reversible=reversible, can_look_up=look_up)
        await ledger.fence(ref)

        assert (await ledger.claim(ref)).verdict is verdict, (reversible, look_up)


async def test_not_found_settles_only_after_the_landing_window(ledger: Ledger) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref, keyed=False, max_sends=1)
    assert claim.row is not None
    effect = claim.row.ref
    row = await ledger.store.begin_lookup(effect)
    early = await ledger.store.record_lookup(effect, row.token, None, asked_at=ledger.clock.now)
    ledger.clock.pass_(15.001)
    stale_question = await ledger.store.record_lookup(
        effect, row.token, None, asked_at=ledger.clock.now - timedelta(seconds=1)
    )
    late = await ledger.store.record_lookup(effect, row.token, None, asked_at=ledger.clock.now)

    assert early.state is State.UNKNOWN
    assert stale_question.state is State.UNKNOWN, "asked before the window was over"
    assert late.state is State.FAILED


@pytest.mark.parametrize("going_on_s", [0, 5])
async def test_landing_window_counts_from_the_end_of_a_call_that_ended_after_its_time_to_send(
    ledger: Ledger, going_on_s: int
) -> None:
    """Send-by is 5 s after the claim, the landing window 10 s; the call ended after 30 s, or went on."""
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    effect = claim.row.ref
    ledger.clock.pass_(30)
    going_on = ledger.clock.now + timedelta(seconds=going_on_s) if going_on_s else None
    lost = CommitOutcome(applied=None, error="no answer", going_on_until=going_on)
    await ledger.store.record_commit(effect, claim.row.token, lost)

    async def not_found() -> State:
        row = await ledger.store.begin_lookup(effect)
        asked_at = ledger.clock.now
        return (await ledger.store.record_lookup(effect, row.token, None, asked_at=asked_at)).state

    at_once = await not_found()
    ledger.clock.pass_(9.9 + going_on_s)
    within = await not_found()
    ledger.clock.pass_(0.2)

    assert (at_once, within, await not_found()) == (State.UNKNOWN, State.UNKNOWN, State.FAILED)


async def test_call_that_goes_on_keeps_its_landing_window_open(ledger: Ledger) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    effect = claim.row.ref
    await ledger.store.record_commit(effect, claim.row.token, LOST)
    ledger.clock.pass_(60)
    await ledger.store.keep_open(effect, ledger.clock.now + timedelta(seconds=5))
    row = await ledger.store.begin_lookup(effect)
    early = await ledger.store.record_lookup(effect, row.token, None, asked_at=ledger.clock.now)
    await ledger.store.keep_open(effect, ledger.clock.now)
    kept = await ledger.store.load_effect(effect)

    assert early.state is State.UNKNOWN
    assert kept.wire_until == ledger.clock.now + timedelta(seconds=15), "it is never shortened"


async def test_answer_that_another_request_would_only_get_again_isn_t_asked_for_again(
    ledger: Ledger,
) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    stored = CommitOutcome(applied=None, error="a stored 500", spent=True)
    await ledger.store.record_commit(claim.row.ref, claim.row.token, stored)
    steps = (await ledger.store.undecided(ledger.call(ref))).steps

    assert [step.action for step in steps] == ["look_up"]


async def test_commit_that_the_system_is_still_at_uses_up_no_budget_for_a_time(ledger: Ledger) -> None:
    """Three sends are allowed, and its outcome is looked for within a minute."""
    ref = await ledger.turn()
    plan = CallPlan(
        index=0, tool="note", kind="effect", summary="note", attempt_ms=1, total_ms=1, resolve_ms=60_000
    )
    row = (await ledger.claim(ref, plan=plan)).row
    at_it = CommitOutcome(applied=None, error="in progress", running=True)
    for _ in range(7):
        assert row is not None
        await ledger.store.record_commit(row.ref, row.token, at_it)
        again = await ledger.claim(ref)
        assert again.verdict is Verdict.SEND
        row = again.row
    ledger.clock.pass_(61)
    for _ in range(3):
        assert row is not None
        await ledger.store.record_commit(row.ref, row.token, at_it)
        row = (await ledger.claim(ref)).row

    assert (await ledger.claim(ref)).verdict is Verdict.STORED


async def test_look_up_takes_the_claim_away(ledger: Ledger) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    await ledger.store.begin_lookup(claim.row.ref)
    row = await ledger.store.record_commit(claim.row.ref, claim.row.token, REFUSED)

    assert row.state is State.UNKNOWN


@pytest.mark.parametrize(
    "result", ["\x00", "\ud800", "😀", object(), {"x": object()}, "y" * 3_000_000, {1: 2}, float("nan"), None]
)
async def test_storing_an_outcome_can_t_fail_on_its_content(ledger: Ledger, result: object) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    row = await ledger.store.record_commit(
        claim.row.ref, claim.row.token, CommitOutcome(applied=True, receipt={"r": result}, result=result)
    )

    assert row.state is State.COMMITTED
    assert len(row.result or "") < 300_000
