"""What is Postgres's own: many writers at once, connections that die, and news of events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.databases import Postgres
from tests.store.ledgers import Clock, Ledger, new_effect
from turnsaga.errors import StoreUnavailable
from turnsaga.models import FenceRequest, StepRef, TurnRef
from turnsaga.store import SqlStore, Verdict


@asynccontextmanager
async def opened(url: str, *, connections: int = 4) -> AsyncIterator[SqlStore]:
    store = SqlStore(url, connections=connections)
    await store.open()
    yield store
    await store.close()


def step(ref: TurnRef) -> StepRef:
    return StepRef(tenant=ref.tenant, turn=ref.turn, step=1)


async def test_gates_of_many_turns_on_one_identity_open_one_at_a_time(postgres: Postgres) -> None:
    """Sixteen turns, sixteen connections: without a lock over turns two of them see each other not."""
    async with opened(postgres.new_database(), connections=16) as store:
        ledger = Ledger(store, Clock())
        for number in range(10):
            refs = [await ledger.turn(conversation=f"r{number}-{n}") for n in range(8)]
            claims = await asyncio.gather(
                *(
                    store.claim_commit(ledger.call(ref), new_effect(ref, 0, identity=f"INV-{number}"))
                    for ref in refs
                )
            )
            verdicts = [claim.verdict for claim in claims]

            assert verdicts.count(Verdict.SEND) == 1
            assert verdicts.count(Verdict.BUSY) == 7


async def test_effects_on_one_resource_get_epochs_of_their_own(postgres: Postgres) -> None:
    async with opened(postgres.new_database(), connections=16) as store:
        ledger = Ledger(store, Clock())
        refs = [await ledger.turn() for _ in range(12)]
        claims = await asyncio.gather(
            *(store.claim_commit(ledger.call(ref), new_effect(ref, 0, resources=("r", "s"))) for ref in refs)
        )

        assert [claim.verdict for claim in claims].count(Verdict.SEND) == 1


async def test_fence_and_gate_race_on_one_turn_over_many_connections(postgres: Postgres) -> None:
    async with opened(postgres.new_database(), connections=16) as store:
        ledger = Ledger(store, Clock())

        async def race(number: int) -> None:
            ref = await ledger.turn(calls=3, conversation=f"race{number}")
            request = FenceRequest(tenant=ref.tenant, turn=ref.turn, cause="abort", via="api")
            await asyncio.gather(
                *(store.claim_commit(ledger.call(ref, n), new_effect(ref, n)) for n in range(3)),
                store.fence(request),
            )
            await store.complete_turn(ref)
            kinds = await ledger.kinds(ref)
            after = kinds[kinds.index("turn_aborting") :]

            assert not {"tool_committing", "tool_prepared"} & set(after)

        await asyncio.gather(*(race(number) for number in range(60)))


async def test_connections_that_die_are_opened_again_and_nothing_is_lost(postgres: Postgres) -> None:
    url = postgres.new_database()
    async with opened(url) as store:
        ledger = Ledger(store, Clock())
        ref = await ledger.turn()
        for number in range(6):
            postgres.drop_connections(url)
            assert await store.append_text(step(ref), str(number))
        kinds = await ledger.kinds(ref)

    assert kinds.count("text_delta") == 6


async def test_server_that_isn_t_there_is_a_clear_error_without_its_password() -> None:
    store = SqlStore("postgresql://turnsaga:secret@127.0.0.1:1/ledger")

    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1") as caught:
        await store.open()
    await store.close()

    assert "secret" not in str(caught.value)


async def test_followers_are_told_of_events_by_any_process(postgres: Postgres) -> None:
    url = postgres.new_database()
    async with opened(url) as here, opened(url) as elsewhere:
        ledger = Ledger(elsewhere, Clock())
        ref = await ledger.turn()
        other = await ledger.turn()
        await here.news_of(ref.turn, within_s=2)
        waiting = asyncio.create_task(here.news_of(ref.turn, within_s=30))
        await elsewhere.append_text(step(other), "not for this one")
        await asyncio.sleep(0.2)
        still_waiting = not waiting.done()
        await elsewhere.append_text(step(ref), "news")
        await asyncio.wait_for(waiting, 5)

    assert still_waiting


async def test_follower_hears_again_after_its_connection_died(postgres: Postgres) -> None:
    url = postgres.new_database()
    async with opened(url) as store:
        ref = await Ledger(store, Clock()).turn()
        await store.news_of(ref.turn, within_s=2)
        waiting = asyncio.create_task(store.news_of(ref.turn, within_s=30))
        await asyncio.sleep(0.1)
        postgres.drop_connections(url)

        # Anything may have been missed meanwhile, so whoever waits is woken to look.
        await asyncio.wait_for(waiting, 10)
