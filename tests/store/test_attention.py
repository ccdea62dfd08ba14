"""What needs a person: the queue, their word, what it races with, and what is recorded of it."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, select

from tests.store.ledgers import ADA, APPLIED, BOB, EVE, LOST, Ledger, undo_claim
from turnsaga.errors import NotFound
from turnsaga.ledger import IN_DOUBT, Event, State, TurnState
from turnsaga.models import EffectRef, FenceRequest, Principal, Ruling, RulingWord, TurnRef
from turnsaga.store import CommitOutcome, UndoOutcome, Verdict, brief, schema
from turnsaga.store._rows import EffectRow
from turnsaga.store._unit import TurnUnit

WORDS: tuple[RulingWord, ...] = ("applied", "not_applied", "undone", "stands")
ONCE: dict[str, Any] = {"keyed": False, "can_look_up": False, "max_sends": 1}
FINAL: dict[str, Any] = {**ONCE, "reversible": False, "no_undo_reason": "a mail can't be taken back"}
ALLOWED = {
    ("unknown", "applied"): State.COMMITTED,
    ("unknown", "not_applied"): State.FAILED,
    ("compensation_failed", "undone"): State.COMPENSATED,
    ("compensation_failed", "stands"): State.STANDING,
}


def ruling(effect: EffectRef, word: RulingWord, **other: Any) -> Ruling:
    told = {"note": "I looked", "by": "acme/grace", "via": "api", **other}
    return Ruling.model_validate({"tenant": effect.tenant, "effect": effect.effect, "word": word, **told})


async def doubt(ledger: Ledger, ref: TurnRef, index: int = 0, **declared: Any) -> EffectRow:
    """Lose an effect's answer and hand it over, past the instant up to which it can land."""
    claim = await ledger.claim(ref, index, **{**ONCE, **declared})
    assert claim.row is not None
    await ledger.store.record_commit(claim.row.ref, claim.row.token, LOST)
    row = await ledger.store.hand_over(claim.row.ref, "it can't be asked")
    ledger.clock.pass_(60)
    return row


async def stuck(ledger: Ledger, ref: TurnRef, index: int = 0) -> EffectRow:
    """Commit an effect, abort its turn, and have its undo refused for good."""
    effect = await ledger.commit(ref, index)
    await ledger.fence(ref)
    row, may = undo_claim(await ledger.store.claim_undo(effect))
    assert may
    return (await ledger.store.record_undo(effect, row.token, UndoOutcome(error="locked"))).row


async def recorded(ledger: Ledger, effect: str) -> list[tuple[Any, ...]]:
    def read(connection: Connection) -> list[tuple[Any, ...]]:
        table = schema.resolutions
        columns = (table.c.number, table.c.state, table.c.word, table.c.note, table.c.by, table.c.via)
        found = connection.execute(
            select(*columns, table.c.at).where(table.c.effect == effect).order_by(table.c.number)
        )
        return [tuple(row) for row in found]

    return await ledger.store._database.read(read)


async def test_queue_is_the_tenant_s_in_the_order_of_waiting_and_bounded(ledger: Ledger) -> None:
    first = await doubt(ledger, await ledger.turn(who=BOB), reversible=False)
    turn = await ledger.turn(calls=2)
    await doubt(ledger, turn, 1)
    second = await stuck(ledger, turn)
    await doubt(ledger, await ledger.turn(who=EVE))
    await ledger.commit(await ledger.turn())
    of_acme = await ledger.store.attention("acme")
    one = await ledger.store.attention("acme", limit=1)
    of_other = await ledger.store.attention("other")
    count = await ledger.store.count_attention()
    await ledger.store.resolve(ruling(first.ref, "applied"))

    assert len(of_acme) == 3
    assert (of_acme[0].effect, of_acme[-1].effect) == (first.effect, second.effect)
    assert [view.effect for view in one] == [first.effect]
    assert len(of_other) == 1
    assert count == 4
    assert await ledger.store.count_attention() == 3
    assert first.effect not in {view.effect for view in await ledger.store.attention("acme")}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("state", ["unknown", "compensation_failed"])
async def test_word_is_taken_where_the_state_allows_it(ledger: Ledger, state: str, word: RulingWord) -> None:
    ref = await ledger.turn()
    before = await (doubt if state == "unknown" else stuck)(ledger, ref)
    taken = await ledger.store.resolve(ruling(before.ref, word))
    row = await ledger.store.load_effect(before.ref)
    expected = ALLOWED.get((state, word))

    assert taken.row == row
    if expected is None:
        assert taken.answer == "not_resolvable"
        assert row == before
        assert await recorded(ledger, row.effect) == []
    else:
        assert taken.answer == "accepted"
        assert (row.state, row.owned, row.needs_attention, row.resolution) == (expected, False, False, word)
        assert row.token > before.token
        assert (await ledger.kinds(ref))[-1] == f"tool_{expected}"
        assert await recorded(ledger, row.effect) == [
            (1, state, word, "I looked", "acme/grace", "api", ledger.clock.now)
        ]


@pytest.mark.parametrize("other", WORDS)
@pytest.mark.parametrize("word", WORDS)
async def test_first_word_counts_and_the_same_one_again_changes_nothing(
    ledger: Ledger, word: RulingWord, other: RulingWord
) -> None:
    ref = await ledger.turn()
    before = await (doubt if word in {"applied", "not_applied"} else stuck)(ledger, ref)
    first = await ledger.store.resolve(ruling(before.ref, word))
    events = await ledger.kinds(ref)
    second = await ledger.store.resolve(ruling(before.ref, other, note="another", by="acme/bob"))

    assert second.answer == ("accepted" if other == word else "already_resolved")
    assert second.row == first.row
    assert await ledger.kinds(ref) == events
    assert len(await recorded(ledger, before.effect)) == 1


async def test_nobody_is_asked_about_other_states(ledger: Ledger) -> None:
    ref = await ledger.turn(calls=3)
    committed = await ledger.commit(ref, 0)
    claimed = await ledger.claim(ref, 1)
    asked = await ledger.claim(ref, 2)
    assert claimed.row is not None
    assert asked.row is not None
    await ledger.store.record_commit(asked.row.ref, asked.row.token, LOST)
    kinds = await ledger.kinds(ref)
    for effect in (committed, claimed.row.ref, asked.row.ref):
        for word in WORDS:
            assert (await ledger.store.resolve(ruling(effect, word))).answer == "not_resolvable"

    assert await ledger.kinds(ref) == kinds
    assert (await ledger.state(claimed.row.ref), await ledger.state(asked.row.ref)) == (
        State.COMMITTING,
        State.UNKNOWN,
    )


@pytest.mark.parametrize("word", WORDS)
async def test_job_and_claim_that_were_handed_over_are_followed_and_not_resolved(
    ledger: Ledger, word: RulingWord
) -> None:
    ref = await ledger.turn(calls=2)
    claim = await ledger.claim(ref, 0)
    assert claim.row is not None
    job = claim.row.ref

    def accept(connection: Connection) -> None:
        unit = TurnUnit.hold(connection, ref, ledger.clock.now)
        row = unit.move(unit.effect(job.effect), Event.JOB_ACCEPTED)
        unit.move(row, Event.HANDED_OVER, owned=True)

    await ledger.store._database.write(accept)
    again = await doubt(ledger, ref, 1)

    def claim_again(connection: Connection) -> None:
        unit = TurnUnit.hold(connection, ref, ledger.clock.now)
        unit.move(unit.effect(again.effect), Event.CLAIMED_AGAIN, token=again.token + 1)

    await ledger.store._database.write(claim_again)
    answers = [(await ledger.store.resolve(ruling(effect, word))).answer for effect in (job, again.ref)]

    assert answers == ["not_resolvable"] * 2
    waiting = {view.state for view in await ledger.store.attention("acme")}
    assert waiting == {State.ACCEPTED, State.COMMITTING}
    assert waiting < IN_DOUBT


async def test_unknown_and_another_tenant_s_effect_are_not_found_alike(ledger: Ledger) -> None:
    before = await doubt(ledger, await ledger.turn())
    for name in (EffectRef(tenant="other", turn=before.turn, effect=before.effect), before.ref):
        effect = name if name.tenant == "other" else name.model_copy(update={"effect": "eff_none"})
        with pytest.raises(NotFound, match=f"there is no effect '{effect.effect}'"):
            await ledger.store.resolve(ruling(effect, "applied"))

    assert await ledger.store.load_effect(before.ref) == before


async def test_not_applied_is_not_believed_while_the_request_can_land(ledger: Ledger) -> None:
    claim = await ledger.claim(await ledger.turn(), **ONCE)
    assert claim.row is not None
    await ledger.store.record_commit(claim.row.ref, claim.row.token, LOST)
    row = await ledger.store.hand_over(claim.row.ref, "it can't be asked")
    assert row.wire_until is not None
    ledger.clock.now = row.wire_until
    ledger.clock.pass_(-0.001)
    early = await ledger.store.resolve(ruling(row.ref, "not_applied"))
    ledger.clock.pass_(0.001)
    due = await ledger.store.resolve(ruling(row.ref, "not_applied"))

    assert (early.answer, early.row) == ("not_resolvable", row)
    assert row.wire_until.isoformat() in early.reason
    assert (due.answer, due.row.state) == ("accepted", State.FAILED)


@pytest.mark.parametrize(
    ("cause", "declared", "state"),
    [
        ("abort", FINAL, State.STANDING),
        ("failure", FINAL, State.STANDING),
        ("abort", ONCE, State.COMPENSATED),
    ],
)
async def test_found_applied_after_its_turn_was_stopped_is_taken_up_like_a_late_landing(
    ledger: Ledger, cause: str, declared: dict[str, Any], state: State
) -> None:
    ref = await ledger.turn()
    row = await doubt(ledger, ref, **declared)
    await ledger.store.fence(
        FenceRequest.model_validate({"tenant": ref.tenant, "turn": ref.turn, "cause": cause, "via": "api"})
    )
    assert (await ledger.store.next_steps(ref)).settled
    await ledger.store.resolve(ruling(row.ref, "applied"))
    swept = await ledger.store.turns_to_sweep(before=ledger.clock.now, limit=9)
    for step in (await ledger.store.next_steps(ref)).steps:
        assert step.action == "undo"
        claimed, may = undo_claim(await ledger.store.claim_undo(row.ref))
        assert may
        await ledger.store.record_undo(row.ref, claimed.token, UndoOutcome(undone=True, evidence={"e": 1}))
    kinds = await ledger.kinds(ref)
    later = await ledger.store.turns_to_sweep(before=ledger.clock.now, limit=9)

    assert [turn.ref for turn in swept if turn.ended] == [ref]
    assert await ledger.state(row.ref) is state
    assert kinds[kinds.index("turn_settled") + 1] == "tool_committed"
    assert kinds[-1] == f"tool_{state}"
    assert later == ()


async def test_found_applied_in_a_turn_that_completed_stays_committed(ledger: Ledger) -> None:
    ref = await ledger.turn()
    row = await doubt(ledger, ref)
    assert (await ledger.store.complete_turn(ref)).settled
    await ledger.store.resolve(ruling(row.ref, "applied"))
    await ledger.store.next_steps(ref)
    view = await ledger.store.turn_view(ADA, ref.turn)

    assert (view.state, view.effects[0].state, view.effects[0].order) == (
        TurnState.COMPLETED,
        State.COMMITTED,
        1,
    )


async def test_effect_can_need_a_person_twice_and_both_words_are_kept(ledger: Ledger) -> None:
    ref = await ledger.turn()
    row = await doubt(ledger, ref)
    await ledger.fence(ref)
    await ledger.store.next_steps(ref)
    await ledger.store.resolve(ruling(row.ref, "applied"))
    claimed, _ = undo_claim(await ledger.store.claim_undo(row.ref))
    await ledger.store.record_undo(row.ref, claimed.token, UndoOutcome(error="no receipt"))
    stale = await ledger.store.resolve(ruling(row.ref, "not_applied"))
    again = await ledger.store.resolve(ruling(row.ref, "stands", note="agreed by phone"))

    assert stale.answer == "not_resolvable"
    assert (again.answer, again.row.state, again.row.no_undo_reason) == (
        "accepted",
        State.STANDING,
        "agreed by phone",
    )
    assert [row[:3] for row in await recorded(ledger, row.effect)] == [
        (1, "unknown", "applied"),
        (2, "compensation_failed", "stands"),
    ]


async def test_note_is_shown_to_the_user_and_stays_out_of_histories(ledger: Ledger) -> None:
    row = await stuck(ledger, await ledger.turn())
    await ledger.store.resolve(ruling(row.ref, "stands", note="Ada keeps it\x00"))
    kept = await ledger.store.load_effect(row.ref)
    outstanding = await ledger.store.account_effects(ADA, outstanding=True)

    assert [view.no_undo_reason for view in outstanding] == ["Ada keeps it\ufffd"]
    assert outstanding[0].error is None
    assert "Ada keeps it" not in brief(kept).model_dump_json()
    assert brief(kept).note


@pytest.mark.parametrize("word", ["applied", "not_applied"])
@pytest.mark.parametrize("first", ["evidence", "word"])
async def test_evidence_and_a_word_that_meet_leave_one_truth(
    ledger: Ledger, first: str, word: RulingWord
) -> None:
    ref = await ledger.turn()
    row = await doubt(ledger, ref)
    late = row.token - 2

    async def evidence() -> EffectRow:
        return await ledger.store.record_commit(row.ref, late, APPLIED)

    if first == "evidence":
        await evidence()
        taken = await ledger.store.resolve(ruling(row.ref, word))
    else:
        taken = await ledger.store.resolve(ruling(row.ref, word))
        await evidence()
    kept = await ledger.store.load_effect(row.ref)
    kinds = await ledger.kinds(ref)

    assert taken.row == kept
    assert taken.answer == ("accepted" if first == "word" else "not_resolvable")
    assert kept.state is (State.FAILED if (first, word) == ("word", "not_applied") else State.COMMITTED)
    assert not kept.needs_attention
    assert kinds.count("tool_committed") + kinds.count("tool_failed") == 1


async def test_looks_and_undos_under_way_write_nothing_after_a_word(ledger: Ledger) -> None:
    asked = await doubt(ledger, await ledger.turn(), can_look_up=True)
    await ledger.store.resolve(ruling(asked.ref, "not_applied"))
    ref = await ledger.turn()
    failed = await stuck(ledger, ref)
    await ledger.store.resolve(ruling(failed.ref, "stands"))
    before = [await ledger.store.load_effect(row.ref) for row in (asked, failed)]
    await ledger.store.record_lookup(
        asked.ref, asked.token, CommitOutcome(applied=True), asked_at=ledger.clock.now
    )
    await ledger.store.hand_over(asked.ref, "late")
    await ledger.store.record_undo(failed.ref, failed.token, UndoOutcome(undone=True, evidence={"e": 1}))
    _, may = undo_claim(await ledger.store.claim_undo(failed.ref))

    assert not may
    assert [await ledger.store.load_effect(row.ref) for row in (asked, failed)] == before


async def test_many_words_and_evidence_at_once_end_in_one_transition(ledger: Ledger) -> None:
    for _ in range(5):
        ref = await ledger.turn()
        row = await doubt(ledger, ref)
        taken, _, other = await asyncio.gather(
            ledger.store.resolve(ruling(row.ref, "applied")),
            ledger.store.record_commit(row.ref, row.token - 2, APPLIED),
            ledger.store.resolve(ruling(row.ref, "not_applied")),
        )
        kept = await ledger.store.load_effect(row.ref)
        kinds = await ledger.kinds(ref)
        words = await recorded(ledger, row.effect)

        assert sum(kinds.count(kind) for kind in ("tool_committed", "tool_failed")) == 1
        assert len(words) == [taken.answer, other.answer].count("accepted") <= 1
        assert kept.resolution == (words[0][2] if words else None)
        assert kept.state is (State.FAILED if kept.resolution == "not_applied" else State.COMMITTED)


async def test_word_frees_the_identity(ledger: Ledger) -> None:
    row = await doubt(ledger, await ledger.turn(), identity="INV-9")
    following = await ledger.turn()
    held = await ledger.claim(following, identity="INV-9")
    await ledger.store.resolve(ruling(row.ref, "not_applied"))
    freed = await ledger.claim_anew(following)

    assert held.verdict not in {Verdict.SEND, Verdict.OUTDATED}
    assert freed.verdict is Verdict.SEND


@pytest.mark.parametrize("who", [ADA, BOB], ids=str)
async def test_view_and_queue_agree(ledger: Ledger, who: Principal) -> None:
    turn = await ledger.turn(who=who, calls=3)
    await doubt(ledger, turn, 0)
    await ledger.claim(turn, 1)
    await ledger.commit(turn, 2)
    queued = {view.effect for view in await ledger.store.attention("acme")}
    views = await ledger.store.account_effects(who, outstanding=False)

    assert queued == {view.effect for view in views if view.needs_attention}
    assert len(queued) == 1
