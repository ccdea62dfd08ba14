"""A connection that is lost at COMMIT: what was committed isn't done twice, what wasn't isn't left out."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from sqlalchemy import Connection, insert

from tests.databases import Postgres
from tests.stack import eventually
from tests.store.ledgers import ADA, APPLIED, REFUSED, Clock, Ledger, new_turn, undo_claim
from tests.store.wire import Cut, Wire, wire_to
from turnsaga.client import TurnClient
from turnsaga.errors import StoreUnavailable
from turnsaga.ledger import State
from turnsaga.models import EffectRef, TurnRef
from turnsaga.store import SqlStore, UndoOutcome, Verdict, _engine, schema
from turnsaga.store._prepared import Prepared

ADD_EVENT: Final = Prepared(insert(schema.turn_events))
CUTS = pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())


@asynccontextmanager
async def wired(postgres: Postgres) -> AsyncIterator[tuple[Ledger, Wire]]:
    async with wire_to(postgres.new_database()) as wire:
        store = SqlStore(wire.url, connections=1)
        await store.open()
        yield Ledger(store, Clock()), wire
        await store.close()


async def undone(ledger: Ledger, ref: TurnRef, **declared: Any) -> EffectRef:
    """Commit an effect and stop its turn, so that it can be undone."""
    effect = await ledger.commit(ref, **declared)
    await ledger.fence(ref)
    return effect


@CUTS
async def test_text_is_in_the_stream_once(postgres: Postgres, cut: Cut) -> None:
    async with wired(postgres) as (ledger, wire):
        ref = await ledger.turn()
        wire.next_cut = cut
        taken = await ledger.store.append_text(ledger.step(ref), "once")
        kinds = await ledger.kinds(ref)

    assert (taken, wire.cuts) == (True, 1)
    assert kinds == ["turn_started", "text_delta"]


@CUTS
async def test_start_is_answered_as_the_one_that_began_the_turn(postgres: Postgres, cut: Cut) -> None:
    async with wired(postgres) as (ledger, wire):
        wire.next_cut = cut
        started = await ledger.store.start_turn(new_turn(ADA, "c", "k"))
        kinds = await ledger.kinds(started.ref)

    assert (started.created, wire.cuts) == (True, 1)
    assert kinds == ["turn_started"]


@CUTS
async def test_claim_of_an_attempt_isn_t_taken_for_another_one_s(postgres: Postgres, cut: Cut) -> None:
    """Run again blindly, it finds its own claim: what wasn't sent would be unknown, and wait for a person."""
    async with wired(postgres) as (ledger, wire):
        ref = await ledger.turn()
        wire.next_cut = cut
        claim = await ledger.claim(ref, keyed=False, can_look_up=False, max_sends=1)
        kinds = await ledger.kinds(ref)
        assert claim.row is not None
        refused = await ledger.store.record_commit(claim.row.ref, claim.row.token, REFUSED)

    assert (claim.verdict, claim.row.sends, wire.cuts) == (Verdict.SEND, 1, 1)
    assert kinds == ["turn_started", "tool_prepared", "tool_committing"]
    assert refused.state is State.FAILED, "one request, and it was refused"


@CUTS
async def test_claim_of_an_undo_that_can_be_sent_once_may_be_sent(postgres: Postgres, cut: Cut) -> None:
    async with wired(postgres) as (ledger, wire):
        effect = await undone(ledger, await ledger.turn(), undo_keyed=False)
        wire.next_cut = cut
        row, may = undo_claim(await ledger.store.claim_undo(effect))

    assert (may, row.state, row.undo_sends, wire.cuts) == (True, State.COMPENSATING, 1, 1)


@CUTS
async def test_refusal_of_an_undo_is_counted_once(postgres: Postgres, cut: Cut) -> None:
    async with wired(postgres) as (ledger, wire):
        effect = await undone(ledger, await ledger.turn())
        row, _ = undo_claim(await ledger.store.claim_undo(effect))
        wire.next_cut = cut
        refused = UndoOutcome(again=True, error="busy")
        row = (await ledger.store.record_undo(effect, row.token, refused)).row

    assert (row.undo_sends, row.undo_refusals, wire.cuts) == (1, 1, 1)


@CUTS
async def test_outcome_fence_and_end_are_written_and_answered_once(postgres: Postgres, cut: Cut) -> None:
    async with wired(postgres) as (ledger, wire):
        ref, other = await ledger.turn(), await ledger.turn()
        claim = await ledger.claim(ref)
        assert claim.row is not None
        row = claim.row

        async def through(work: Callable[[], Awaitable[object]]) -> object:
            wire.next_cut = cut
            return await work()

        stored = await through(lambda: ledger.store.record_commit(row.ref, row.token, APPLIED))
        fenced = await through(lambda: ledger.fence(ref))
        completed = await through(lambda: ledger.store.complete_turn(other))
        kinds = [await ledger.kinds(ref), await ledger.kinds(other)]

    assert getattr(stored, "state", None) is State.COMMITTED
    assert getattr(fenced, "first", None) is True
    assert getattr(completed, "settled", None) is True
    assert wire.cuts == 3
    assert kinds[0][-2:] == ["tool_committed", "turn_aborting"]
    assert kinds[1] == ["turn_started", "turn_settled"]


@CUTS
async def test_transaction_that_only_its_commit_carries_is_asked_about_too(
    postgres: Postgres, cut: Cut
) -> None:
    """Nothing of it has been sent before, so the server has named it in no answer."""
    async with wired(postgres) as (ledger, wire):
        ref = await ledger.turn()

        def later(connection: Connection) -> None:
            row = {"tenant": ref.tenant, "turn": ref.turn, "number": 900, "at": ledger.clock.now}
            ADD_EVENT.run_later(connection, {**row, "kind": "text_delta", "data": "{}"})

        wire.next_cut = cut
        await ledger.store._database.write(later)

        assert wire.cuts == 1


async def test_transaction_that_can_t_be_asked_about_says_that_it_may_be_written(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired(postgres) as (ledger, wire):
        ref = await ledger.turn()
        monkeypatch.setattr(_engine, "_ASKING", (0.01, 0.01))
        wire.next_cut = Cut.AFTER
        wire.holding = True

        with pytest.raises(StoreUnavailable, match="may be written"):
            await ledger.store.append_text(ledger.step(ref), "?")

        wire.holding = False
        kinds = await ledger.kinds(ref)

    assert kinds == ["turn_started", "text_delta"]


async def test_follower_whose_connections_are_cut_misses_no_event(postgres: Postgres) -> None:
    """Also those that are written while nobody listens."""
    url = postgres.new_database()
    elsewhere = SqlStore(url)
    await elsewhere.open()
    ledger = Ledger(elsewhere, Clock())
    ref = await ledger.turn()
    async with wire_to(url) as wire:
        store = SqlStore(wire.url, connections=1)
        await store.open()
        seen: list[int] = []
        async for event in TurnClient(None, store).follow(ADA, ref.turn):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # following needs no Temporal
            if event is None:
                continue
            seen.append(event.number)
            if event.kind == "turn_settled":
                break
            wire.cut()
            await eventually(lambda: wire.connections == 0, what="the cut")
            if len(seen) < 6:
                await elsewhere.append_text(ledger.step(ref), "while nobody listens")
            else:
                await elsewhere.complete_turn(ref)
        last = (await elsewhere.event_page(ADA, ref.turn, after=0)).last
        await store.close()
    await elsewhere.close()

    assert seen == list(range(1, last + 1))
