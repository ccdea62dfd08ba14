"""What every ledger must do, whatever the database: gates, fences, tokens, and events that never disagree."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from tests.databases import Postgres
from turnsaga.errors import (
    IllegalTransition,
    InvalidRequest,
    NotFound,
    StartConflict,
    StoreUnavailable,
    StoreUnusable,
    TurnInProgress,
)
from turnsaga.keys import digest, effect_key
from turnsaga.ledger import State, TurnState
from turnsaga.models import CallPlan, CallRef, EffectRef, FenceRequest, Principal, StepRef, TurnRef
from turnsaga.store import (
    Claim,
    CommitOutcome,
    NewCall,
    NewEffect,
    NewReply,
    NewTurn,
    SqlStore,
    UndoOutcome,
    Verdict,
)
from turnsaga.store.schema import metadata

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
ADA = Principal(tenant="acme", user="ada")
BOB = Principal(tenant="acme", user="bob")
EVE = Principal(tenant="other", user="ada")
APPLIED = CommitOutcome(applied=True, receipt={"id": "r"}, result={"ok": True})
LOST = CommitOutcome(applied=None, error="no answer")
REFUSED = CommitOutcome(applied=False, error="declined")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Ledger:
    """A store with short ways to what tests do again and again."""

    def __init__(self, store: SqlStore, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._turns = 0

    async def turn(self, *, calls: int = 1, who: Principal = ADA, conversation: str | None = None) -> TurnRef:
        """Start a turn whose first reply asks for so many effects."""
        self._turns += 1
        started = await self.store.start_turn(
            new_turn(who, conversation or f"c{self._turns}", f"k{self._turns}")
        )
        reply = NewReply(
            text="hi",
            finish="tool_call",
            input_tokens=1,
            output_tokens=1,
            calls=tuple(
                NewCall(call_id=f"c{n}", tool="note", arguments="{}", kind="effect") for n in range(calls)
            ),
        )
        assert await self.store.record_reply(self.step(started.ref), reply)
        return started.ref

    @staticmethod
    def step(ref: TurnRef) -> StepRef:
        return StepRef(tenant=ref.tenant, turn=ref.turn, step=1)

    @staticmethod
    def call(ref: TurnRef, index: int = 0) -> CallRef:
        return CallRef(tenant=ref.tenant, turn=ref.turn, step=1, index=index)

    async def claim(self, ref: TurnRef, index: int = 0, **declared: Any) -> Claim:
        return await self.store.claim_commit(self.call(ref, index), new_effect(ref, index, **declared))

    async def commit(self, ref: TurnRef, index: int = 0, **declared: Any) -> EffectRef:
        claim = await self.claim(ref, index, **declared)
        assert claim.row is not None
        assert claim.verdict is Verdict.SEND
        await self.store.record_commit(claim.row.ref, claim.row.token, APPLIED)
        return claim.row.ref

    async def fence(self, ref: TurnRef, cause: str = "abort") -> Any:
        return await self.store.fence(
            FenceRequest.model_validate(
                {"tenant": ref.tenant, "turn": ref.turn, "cause": cause, "via": "api"}
            )
        )

    async def state(self, effect: EffectRef) -> State:
        return (await self.store.load_effect(effect)).state

    async def kinds(self, ref: TurnRef, who: Principal = ADA) -> list[str]:
        page = await self.store.event_page(who, ref.turn, after=0)
        assert [event.number for event in page.events] == list(range(1, len(page.events) + 1))
        return [event.kind for event in page.events]


def new_turn(who: Principal, conversation: str, key: str, *, message: str = "hello") -> NewTurn:
    return NewTurn(
        principal=who,
        conversation=conversation,
        start_key=key,
        message=message,
        model="script",
        model_asked="script",
        policies={},
        deadline_ms=None,
        nonce=f"nonce-{who.tenant}-{who.user}-{key}",
    )


def new_effect(ref: TurnRef, index: int, **declared: Any) -> NewEffect:
    arguments = declared.pop("arguments", {"n": index})
    fields: dict[str, Any] = {
        "tool": "note",
        "system": "fake",
        "identity": f"{ref.turn}/{index}",
        "arguments": arguments,
        "arguments_digest": digest(arguments),
        "occurrence": 1,
        "key": effect_key(
            tool="note", arguments=arguments, tenant=ref.tenant, user="ada", nonce=ref.turn, occurrence=1
        ),
        "request": arguments,
        "resources": (),
        "plan": CallPlan(
            index=index, tool="note", kind="effect", summary=f"note {index}", attempt_ms=1, total_ms=1
        ),
        "policy": "immediate",
        "reversible": True,
        "keyed": True,
        "can_look_up": True,
        "key_dies_with_undo": False,
        "undo_keyed": True,
        "key_life_ms": 3_600_000,
        "send_by_ms": 5_000,
        "landing_ms": 10_000,
        "max_sends": 3,
        "max_undo_sends": 2,
        "title": f"note {index}",
        "no_undo_reason": None,
    }
    return NewEffect(**{**fields, **declared})


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give each test a new database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Ledger]:
    clock = Clock()
    store = SqlStore(url, clock=clock)
    await store.open()
    yield Ledger(store, clock)
    await store.close()


# Starting


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


# Nothing is read or changed across owners


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
            await ledger.store.turn_ref(who, ref.turn)
    assert await ledger.store.conversation_effects(BOB, "c1") == ()


# Gate and fence


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


# Tokens and outcomes


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


# Repeats, identities, resources


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
    free = await ledger.claim(other)

    assert (held.verdict, again.verdict, free.verdict) == (Verdict.BUSY, Verdict.BUSY, Verdict.SEND)
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

    assert await ledger.state(effect) is State.COMMITTED
    assert (while_it_runs.verdict, after.verdict) == (Verdict.BUSY, Verdict.SEND)


async def test_dropped_effect_frees_its_resource(ledger: Ledger) -> None:
    first, second, third = await ledger.turn(), await ledger.turn(), await ledger.turn()
    await ledger.claim(first, resources=("r",))
    held = await ledger.claim(second, resources=("r",))
    assert held.row is not None
    await ledger.store.drop(held.row.ref, "waited too long")
    blocked = await ledger.claim(third, resources=("r",))

    assert await ledger.state(held.row.ref) is State.RELEASED
    assert blocked.verdict is Verdict.BUSY, "the first one is still being committed"


# Settling


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
        row, may = await ledger.store.claim_undo(
            EffectRef(tenant=ref.tenant, turn=ref.turn, effect=step.effect)
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
    _, while_running = await ledger.store.claim_undo(effect)
    await ledger.claim(ref, 1)
    await ledger.fence(ref)
    _, beside_doubt = await ledger.store.claim_undo(effect)

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


# Bad input, a database that is away, and upgrades


@pytest.mark.parametrize("url", ["nonsense", "mysql://localhost/x", ""])
async def test_database_that_the_ledger_can_t_live_in_is_named(url: str) -> None:
    with pytest.raises(InvalidRequest, match="database"):
        SqlStore(url)


async def test_database_that_can_t_be_opened_is_a_clear_error(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/missing/ledger.db")

    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        await store.open()
    await store.close()


async def test_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("not a database, but long enough to be looked at as one " * 20)
    store = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")

    with pytest.raises(StoreUnusable, match="not a database"):
        await store.open()
    await store.close()


async def test_ledger_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqlStore(f"sqlite:///{path}")
    await store.open()
    await store.close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.close()
    later = SqlStore(f"sqlite:///{path}")

    with pytest.raises(StoreUnusable, match="newer version"):
        await later.open()
    await later.close()


async def test_schema_in_code_is_what_the_migrations_build(url: str) -> None:
    store = SqlStore(url)
    await store.open()
    await store.close()
    engine = create_engine(make_url(url).set(drivername=DRIVERS[make_url(url).get_backend_name()]))
    with engine.connect() as connection:
        difference = compare_metadata(MigrationContext.configure(connection), metadata)
    engine.dispose()

    assert difference == []


async def test_what_was_acknowledged_comes_back_once_it_has_moved(ledger: Ledger) -> None:
    ref = await ledger.turn()
    effect = await ledger.commit(ref, reversible=False, no_undo_reason="it can't")
    await ledger.store.acknowledge(ADA, effect.effect)
    await ledger.fence(ref)
    await ledger.store.next_steps(ref)
    stands = await ledger.store.account_effects(ADA, outstanding=True)
    await ledger.store.acknowledge(ADA, effect.effect)
    seen = await ledger.store.account_effects(ADA, outstanding=True)

    assert [view.state for view in stands] == [State.STANDING]
    assert seen == ()


async def test_start_that_names_no_model_is_the_same_start_under_another_default(ledger: Ledger) -> None:
    first = await ledger.store.start_turn(replace(new_turn(ADA, "c", "k"), model_asked=None, model="one"))
    again = await ledger.store.start_turn(replace(new_turn(ADA, "c", "k"), model_asked=None, model="two"))

    assert again.ref == first.ref


async def test_cancelled_caller_leaves_its_transaction_whole(ledger: Ledger) -> None:
    ref = await ledger.turn()
    work = asyncio.create_task(ledger.claim(ref))
    await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    kinds = await ledger.kinds(ref)

    assert kinds in (["turn_started"], ["turn_started", "tool_prepared", "tool_committing"])
    assert await ledger.store.append_text(ledger.step(ref), "the ledger still answers")


async def test_stored_key_is_read_back_and_not_made_again(ledger: Ledger) -> None:
    """A later version may make keys otherwise, or be handed the arguments in another order."""
    ref = await ledger.turn()
    first = await ledger.claim(ref, arguments={"a": 1, "b": 2})
    second = await ledger.claim(ref, arguments={"b": 2, "a": 1}, key="ts2_of_a_later_rule")
    assert first.row is not None
    assert second.row is not None

    assert second.row.key == first.row.key
    assert second.row.request == first.row.request


async def test_ledger_is_durable_before_the_gate_s_answer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqlStore(f"sqlite:///{path}")
    await store.open()
    ledger = Ledger(store, Clock())
    ref = await ledger.turn()
    await ledger.claim(ref)
    with sqlite3.connect(path) as other:
        rows = other.execute("SELECT state, sends, request FROM effects").fetchall()
        synchronous = other.execute("PRAGMA journal_mode").fetchone()
    other.close()
    await store.close()

    assert rows == [("committing", 1, '{"n":0}')]
    assert synchronous == ("wal",)
