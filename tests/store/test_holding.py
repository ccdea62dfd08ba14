"""Held effects in the ledger: what they wait for, who may answer, and that the first answer counts."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, select

from tests.store.ledgers import ADA, APPLIED, BOB, EVE, Ledger, new_effect, new_turn
from turnsaga.client import OnBusy
from turnsaga.errors import KeyConflict, NotFound, TurnInProgress
from turnsaga.ledger import State, TurnState
from turnsaga.models import Decision, TurnRef
from turnsaga.store import Claim, DecisionTaken, EffectRow, Started, Verdict, schema
from turnsaga.tools import CommitPolicy, Policy

ABORTED = "aborted: not sent, the turn was stopped first"
ASK = Policy(CommitPolicy.CONFIRMED)
AT_END = Policy(CommitPolicy.TURN_END)


async def prepare(ledger: Ledger, ref: TurnRef, index: int = 0, **declared: Any) -> EffectRow:
    new = new_effect(ref, index, **{"policy": ASK, **declared})
    claim = await ledger.store.claim_commit(ledger.call(ref, index), new, gate=False)
    assert claim.verdict is Verdict.HELD
    assert claim.row is not None
    return claim.row


async def gate(ledger: Ledger, ref: TurnRef, index: int = 0) -> Claim:
    return await ledger.store.claim_commit(ledger.call(ref, index), None)


async def answer(ledger: Ledger, row: EffectRow, *, confirmed: bool = True, **other: Any) -> DecisionTaken:
    fields: dict[str, Any] = {
        "tenant": row.tenant,
        "effect": row.effect,
        "confirmed": confirmed,
        "version": row.version,
        "digest": row.shown_digest,
        "by": "acme/ada",
        "via": "api",
    }
    owner = other.pop("owner", ADA)
    return await ledger.store.decide(Decision(**{**fields, **other}), owner=owner)


async def test_effect_that_needs_a_confirmation_is_not_sent_before_it(ledger: Ledger) -> None:
    ref = await ledger.turn()
    row = await prepare(ledger, ref)
    before = await gate(ledger, ref)
    taken = await answer(ledger, row)
    after = await gate(ledger, ref)

    assert (before.verdict, taken.answer, taken.first, after.verdict) == (
        Verdict.HELD,
        "accepted",
        True,
        Verdict.SEND,
    )
    assert await ledger.kinds(ref) == ["turn_started", "tool_prepared", "tool_held", "tool_committing"]
    view = await ledger.store.effect_view(ADA, row.effect)
    assert view.expires_at is None, "nothing is asked any more"


async def test_what_is_shown_is_what_an_answer_must_name(ledger: Ledger) -> None:
    ref = await ledger.turn()
    row = await prepare(ledger, ref)
    view = await ledger.store.effect_view(ADA, row.effect)

    assert (view.held_for, view.version, view.digest) == ("confirmation", row.version, row.shown_digest)
    assert view.expires_at == ledger.clock.now + timedelta(minutes=10)
    wrongs: list[dict[str, Any]] = [
        {"version": row.version + 1},
        {"digest": "x"},
        {"version": row.version - 1 or 7},
    ]
    for wrong in wrongs:
        assert (await answer(ledger, row, **wrong)).answer == "changed"
    assert (await gate(ledger, ref)).verdict is Verdict.HELD


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
async def test_first_answer_counts_and_the_same_one_is_taken_again(
    ledger: Ledger, *, first: bool, second: bool
) -> None:
    ref = await ledger.turn()
    row = await prepare(ledger, ref)
    taken = await answer(ledger, row, confirmed=first)
    again = await answer(ledger, row, confirmed=second)
    other = await answer(ledger, row, confirmed=first, digest="of something else")

    assert (taken.answer, taken.first) == ("accepted", True)
    assert (again.answer, again.first) == ("accepted" if first is second else "already_decided", False)
    assert other.answer == "already_decided"
    assert (await gate(ledger, ref)).verdict is (Verdict.SEND if first else Verdict.STORED)


async def test_answer_that_comes_too_late_releases_the_effect_and_says_so(ledger: Ledger) -> None:
    ref = await ledger.turn()
    row = await prepare(ledger, ref)
    ledger.clock.pass_(600)
    taken = await answer(ledger, row)
    again = await answer(ledger, row, confirmed=False)

    assert (taken.answer, again.answer) == ("expired", "expired")
    assert await ledger.state(row.ref) is State.RELEASED
    assert (await ledger.store.effect_view(ADA, row.effect)).error == (
        "expired: not sent, nobody confirmed it in time"
    )


async def test_window_ends_without_an_answer(ledger: Ledger) -> None:
    ref = await ledger.turn()
    row = await prepare(ledger, ref)
    ledger.clock.pass_(599)
    held, _ = await ledger.store.due(row.ref, turn_ended=False)
    ledger.clock.pass_(1)
    gone, _ = await ledger.store.due(row.ref, turn_ended=False)

    assert (held.state, held.held_for) == (State.PREPARED, "confirmation")
    assert gone.state is State.RELEASED


async def test_abort_withdraws_the_question_at_once(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=3)
    row = await prepare(ledger, ref)
    at_end = await prepare(ledger, ref, 1, policy=AT_END)
    confirmed = await prepare(ledger, ref, 2)
    await answer(ledger, confirmed)
    await ledger.fence(ref)

    for one in (row, at_end, confirmed):
        assert await ledger.state(one.ref) is State.RELEASED
        assert (await ledger.store.load_effect(one.ref)).error == ABORTED
    for one in (row, confirmed):
        assert (await answer(ledger, one)).answer == "turn_aborted"
    assert (await gate(ledger, ref, 2)).verdict is Verdict.FENCED
    assert (await ledger.kinds(ref))[-4:] == ["turn_aborting", *["tool_released"] * 3]


async def test_foreign_answer_finds_nothing_and_changes_nothing(ledger: Ledger) -> None:
    ref, other = await ledger.turn(), await ledger.turn()
    row = await prepare(ledger, ref)
    wrongs: list[dict[str, Any]] = [{"owner": BOB}, {"owner": EVE}, {"tenant": "other"}, {"effect": "eff_x"}]
    for wrong in wrongs:
        with pytest.raises(NotFound):
            await answer(ledger, row, **wrong)
    decision = Decision(
        tenant=row.tenant, effect=row.effect, confirmed=True, version=1, digest=row.shown_digest, by=None,
        via="update",
    )  # fmt: skip
    with pytest.raises(NotFound):
        await ledger.store.decide(decision, turn=other.turn)

    assert (await ledger.store.effect_view(ADA, row.effect)).version == row.version
    assert (await gate(ledger, ref)).verdict is Verdict.HELD


async def test_effect_that_waits_for_nobody_takes_no_answer(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    at_end = await prepare(ledger, ref, policy=AT_END)
    effect = await ledger.commit(ref, 1)

    assert (await answer(ledger, at_end)).answer == "not_held"
    assert (await answer(ledger, await ledger.store.load_effect(effect))).answer == "not_held"


async def test_turn_end_opens_the_gate_only_when_the_stream_is_whole(ledger: Ledger) -> None:
    ref = await ledger.turn()
    row = await prepare(ledger, ref, policy=AT_END)
    too_early, _ = await ledger.store.due(row.ref, turn_ended=False)
    held = await gate(ledger, ref)
    due, _ = await ledger.store.due(row.ref, turn_ended=True)

    assert (too_early.held_for, held.verdict) == ("turn_end", Verdict.HELD)
    assert due.held_for is None
    assert (await gate(ledger, ref)).verdict is Verdict.SEND


@pytest.mark.parametrize("word", [CommitPolicy.IMMEDIATE, CommitPolicy.TURN_END, CommitPolicy.CONFIRMED])
async def test_delay_begins_when_nothing_else_holds_the_effect(ledger: Ledger, word: CommitPolicy) -> None:
    ref = await ledger.turn()
    row = await prepare(ledger, ref, policy=Policy(word, timedelta(seconds=10)))
    ledger.clock.pass_(5)
    if word is CommitPolicy.CONFIRMED:
        assert (await answer(ledger, row)).row.held_for == "delay"
    elif word is CommitPolicy.TURN_END:
        assert (await ledger.store.due(row.ref, turn_ended=True))[0].held_for == "delay"
    left = 5 if word is CommitPolicy.IMMEDIATE else 10
    ledger.clock.pass_(left - 0.001)
    held, _ = await ledger.store.due(row.ref, turn_ended=True)
    shut = await gate(ledger, ref)
    ledger.clock.pass_(0.001)
    due, _ = await ledger.store.due(row.ref, turn_ended=True)

    assert (held.held_for, shut.verdict, due.held_for) == ("delay", Verdict.HELD, None)
    assert (await gate(ledger, ref)).verdict is Verdict.SEND


async def test_what_comes_after_a_held_effect_on_its_resource_is_held_with_it(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    first = await prepare(ledger, ref, policy=AT_END, resources=("ticket/1",))
    second = await ledger.claim(ref, 1, resources=("ticket/1",))
    await ledger.store.due(first.ref, turn_ended=True)
    sent = await gate(ledger, ref)
    assert sent.row is not None
    ledger.clock.pass_(1)
    await ledger.store.record_commit(first.ref, sent.row.token, APPLIED)
    assert second.row is not None
    await ledger.store.due(second.row.ref, turn_ended=True)

    assert (second.verdict, second.row.held_for) == (Verdict.HELD, "turn_end")
    assert (await gate(ledger, ref, 1)).verdict is Verdict.OUTDATED, (
        "it was prepared on what the first changed"
    )
    assert (await ledger.claim_anew(ref, 1)).verdict is Verdict.SEND


async def test_what_a_person_confirmed_is_never_prepared_anew(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    row = await prepare(ledger, ref, 1, resources=("ticket/1",))
    blocker = await ledger.turn()
    await ledger.claim(blocker, resources=("ticket/1",))
    await answer(ledger, row)

    assert (await gate(ledger, ref, 1)).verdict is Verdict.SEND


async def test_two_turns_that_wait_for_each_other_lose_the_younger_ones_effect(ledger: Ledger) -> None:
    older = await ledger.turn(calls=2)
    ledger.clock.pass_(1)
    younger = await ledger.turn(calls=2)
    await ledger.commit(older, 0, resources=("x",))
    await ledger.commit(younger, 0, resources=("y",))
    waits = await ledger.claim(older, 1, resources=("y",))
    yields = await ledger.claim(younger, 1, resources=("x",))
    still = await gate(ledger, older, 1)
    await ledger.store.complete_turn(younger)

    assert (waits.verdict, yields.verdict, still.verdict) == (Verdict.BUSY, Verdict.STORED, Verdict.BUSY)
    assert yields.row is not None
    assert yields.row.state is State.RELEASED
    assert "wait for each other" in (yields.row.error or "")
    assert (await gate(ledger, older, 1)).verdict is Verdict.OUTDATED, "it is its turn now"


async def test_circle_is_found_though_its_youngest_waits_for_somebody_else_too(ledger: Ledger) -> None:
    """Otherwise both would wait until the other's end or their own bounds, and both lose their effects."""
    outside, older = await ledger.turn(), await ledger.turn(calls=2)
    ledger.clock.pass_(1)
    younger = await ledger.turn(calls=2)
    await ledger.commit(outside, resources=("a",))
    await ledger.commit(older, 0, resources=("x",))
    await ledger.commit(younger, 0, resources=("y",))
    waits = await ledger.claim(younger, 1, resources=("a", "x"))
    closes = await ledger.claim(older, 1, resources=("y",))
    yields = await gate(ledger, younger, 1)

    assert (waits.verdict, closes.verdict, yields.verdict) == (Verdict.BUSY, Verdict.BUSY, Verdict.STORED)
    assert yields.row is not None
    assert yields.row.state is State.RELEASED


async def test_gate_looks_at_what_is_open_however_often_a_thing_was_written(ledger: Ledger) -> None:
    for _ in range(20):
        ref = await ledger.turn()
        await ledger.commit(ref, resources=("r", "s"))
        await ledger.store.complete_turn(ref)
    running = await ledger.turn(calls=2)
    await ledger.commit(running, 0, resources=("r",))
    waiting = await ledger.claim(await ledger.turn(), resources=("r",))
    again = await ledger.claim(running, 1, resources=("r",))

    def places(connection: Connection) -> dict[str, list[int]]:
        rows = connection.execute(select(schema.resources.c.resource, schema.resources.c.epoch))
        found: dict[str, list[int]] = {}
        for row in rows.all():
            found.setdefault(row.resource, []).append(row.epoch)
        return {name: sorted(epochs) for name, epochs in found.items()}

    assert (waiting.verdict, again.verdict) == (Verdict.BUSY, Verdict.BUSY)
    assert await ledger.store._database.read(places) == {"r": [21, 22, 23], "s": [20]}


async def test_chain_of_waits_is_no_circle(ledger: Ledger) -> None:
    first, second, third = await ledger.turn(calls=2), await ledger.turn(calls=2), await ledger.turn(calls=2)
    await ledger.commit(first, 0, resources=("x",))
    await ledger.commit(second, 0, resources=("y",))
    assert (await ledger.claim(second, 1, resources=("x",))).verdict is Verdict.BUSY
    assert (await ledger.claim(third, 0, resources=("y",))).verdict is Verdict.BUSY


async def test_what_is_undecided_of_one_call_leaves_the_others_as_they_are(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    ended, waits = await prepare(ledger, ref, 0), await prepare(ledger, ref, 1)
    await ledger.store.undecided(ledger.call(ref, 0))

    assert await ledger.state(ended.ref) is State.RELEASED
    assert await ledger.state(waits.ref) is State.PREPARED


async def test_key_that_stands_for_other_arguments_is_refused_by_name(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=2)
    first = await ledger.claim(ref, 0)
    assert first.row is not None

    with pytest.raises(KeyConflict, match=first.row.key):
        await ledger.claim(ref, 1, key=first.row.key)
    assert await ledger.kinds(ref) == ["turn_started", "tool_prepared", "tool_committing"]


async def queue(ledger: Ledger, conversation: str, key: str, on_busy: OnBusy = "queue") -> Started:
    return await ledger.store.start_turn(replace(new_turn(ADA, conversation, key), on_busy=on_busy))


async def test_queued_turns_run_one_after_the_other_in_their_order(ledger: Ledger) -> None:
    first = await ledger.turn(conversation="c")
    second, third = await queue(ledger, "c", "2"), await queue(ledger, "c", "3")
    too_early = await ledger.store.enter_turn(third.ref)
    done = await ledger.store.complete_turn(first)
    states = [(await ledger.store.turn_view(ADA, one.ref.turn)).state for one in (second, third)]
    again = await queue(ledger, "c", "2")

    assert (second.state, too_early) == (TurnState.QUEUED, TurnState.QUEUED)
    assert done.next_turn == second.ref.turn
    assert states == [TurnState.RUNNING, TurnState.QUEUED]
    assert (again.ref, again.created, again.state) == (second.ref, False, TurnState.RUNNING)
    assert await ledger.kinds(second.ref) == ["turn_started"]


async def test_start_that_takes_the_place_of_a_turn_fences_it(ledger: Ledger) -> None:
    first = await ledger.turn(conversation="c")
    row = await prepare(ledger, first)
    second = await queue(ledger, "c", "2", "abort")
    settled = await ledger.store.next_steps(first)

    assert (second.state, second.aborted) == (TurnState.QUEUED, first.turn)
    assert await ledger.state(row.ref) is State.RELEASED
    assert (settled.state, settled.next_turn) == (TurnState.ABORTED, second.ref.turn)
    assert (await ledger.store.turn_view(ADA, second.ref.turn)).state is TurnState.RUNNING


async def test_queued_turn_that_is_stopped_ends_at_once_and_never_begins(ledger: Ledger) -> None:
    first = await ledger.turn(conversation="c")
    second, third = await queue(ledger, "c", "2"), await queue(ledger, "c", "3")
    fenced = await ledger.fence(second.ref)
    done = await ledger.store.complete_turn(first)

    assert (fenced.first, fenced.state) == (True, TurnState.ABORTED)
    assert await ledger.kinds(second.ref) == ["turn_aborting", "turn_settled"]
    assert done.next_turn == third.ref.turn
    assert await ledger.store.enter_turn(second.ref) is TurnState.ABORTED


async def test_turn_that_was_queued_in_the_moment_of_an_end_lets_itself_in(ledger: Ledger) -> None:
    first = await ledger.turn(conversation="c")
    second = await queue(ledger, "c", "2")
    await ledger.fence(first)
    await ledger.store.next_steps(first)
    third = await queue(ledger, "c", "3")

    assert await ledger.store.enter_turn(second.ref) is TurnState.RUNNING
    assert await ledger.store.enter_turn(third.ref) is TurnState.QUEUED


async def test_queue_is_bounded_and_a_start_that_is_not_to_wait_is_refused(ledger: Ledger) -> None:
    await ledger.turn(conversation="c")
    for n in range(20):
        await queue(ledger, "c", f"q{n}")

    with pytest.raises(TurnInProgress):
        await queue(ledger, "c", "one more")
    with pytest.raises(TurnInProgress):
        await queue(ledger, "c", "impatient", "refuse")


@pytest.mark.parametrize("confirmed", [True, False])
async def test_sweeper_is_told_of_answers_that_the_run_may_not_have_heard_of(
    ledger: Ledger, *, confirmed: bool
) -> None:
    """Also of a no: its effect is released, and the run waits for an answer all the same."""
    ref = await ledger.turn(calls=2)
    row = await prepare(ledger, ref)
    await prepare(ledger, ref, 1)

    async def told() -> tuple[bool, tuple[str, ...]]:
        before = ledger.clock.now + timedelta(microseconds=1)
        (turn,) = await ledger.store.turns_to_sweep(before=before, limit=9)
        return turn.answered, await ledger.store.answered_effects(ref, before=before)

    unanswered = await told()
    await answer(ledger, row, confirmed=confirmed)
    answered = await told()
    ledger.clock.pass_(600)
    looked_by_itself = await told()

    assert unanswered == (False, ())
    assert answered == (True, (row.effect,))
    assert looked_by_itself == (False, ())
