"""Ledgers that earlier versions left behind: read the same after the upgrade, and can be gone on with."""

import asyncio
from collections.abc import Iterator
from itertools import zip_longest
from typing import cast

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from tests.store.ledgers import APPLIED, Clock, Ledger, undo_claim
from tests.store.recordings import (
    Recording,
    engine_of,
    load_rows,
    read_rows,
    recorded_revisions,
    what_is_seen,
)
from turnsaga.ledger import IN_DOUBT, OPEN_TURN, Event, State, TurnState
from turnsaga.models import CallRef, EffectRef, PlannedStep, Principal, TurnRef
from turnsaga.store import CommitOutcome, SqlStore, UndoOutcome, Verdict
from turnsaga.store._unit import TurnUnit
from turnsaga.store.migrations import _config, current_revision
from turnsaga.store.schema import metadata


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = engine_of(url)
    yield engine
    engine.dispose()


@pytest.fixture(params=recorded_revisions())
def recording(request: pytest.FixtureRequest, engine: Engine) -> Recording:
    """A database that the recorded revision left, not yet upgraded."""
    recording = Recording.of(request.param)
    with engine.begin() as connection:
        build(connection, recording.revision)
        load_rows(connection, recording.rows)
    return recording


@pytest.fixture
def clock(recording: Recording) -> Clock:
    clock = Clock()
    clock.now = recording.at
    return clock


def build(connection: Connection, revision: str) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def lacks(found: object, recorded: object, where: str = "seen") -> list[str]:
    """Return what was recorded and isn't found. A later version may show more than was recorded."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        there, then = cast("dict[str, object]", found), cast("dict[str, object]", recorded)
        return [lack for name in then for lack in lacks(there.get(name), then[name], f"{where}.{name}")]
    if isinstance(recorded, list) and isinstance(found, list):
        pairs = list(zip_longest(cast("list[object]", found), cast("list[object]", recorded)))
        return [lack for n, pair in enumerate(pairs) for lack in lacks(*pair, f"{where}[{n}]")]
    return [] if found == recorded else [f"{where}: {found!r}, recorded {recorded!r}"]


def test_every_revision_has_its_recording() -> None:
    scripts = ScriptDirectory.from_config(_config()).walk_revisions()

    assert recorded_revisions() == sorted(script.revision for script in scripts), (
        "record a new revision with: python -m tests.store.record"
    )


def test_newest_recording_has_turns_and_effects_in_every_state() -> None:
    rows = Recording.of(recorded_revisions()[-1]).rows

    assert {row["state"] for row in rows["effects"]} == {state.value for state in State}
    assert {row["state"] for row in rows["turns"]} == {state.value for state in TurnState}
    assert all(rows.values()), "each table has rows"


async def test_upgrade_leaves_what_people_models_and_the_sweeper_read(
    recording: Recording, clock: Clock, url: str, engine: Engine
) -> None:
    store = SqlStore(url, clock=clock)
    await store.open()
    seen = await what_is_seen(store, recording.rows)
    await store.open()
    await store.close()
    with engine.connect() as connection:
        difference = compare_metadata(MigrationContext.configure(connection), metadata)
        kept = {name: len(rows) for name, rows in read_rows(connection).items()}

    assert lacks(seen, recording.seen) == []
    assert difference == []
    new = kept.keys() - recording.rows.keys()
    assert {name: kept[name] for name in kept.keys() - new} == {
        name: len(rows) for name, rows in recording.rows.items()
    }
    assert {kept[name] for name in new} <= {0}


async def test_open_turns_of_an_earlier_version_are_settled_by_this_one(
    recording: Recording, clock: Clock, url: str
) -> None:
    store = SqlStore(url, clock=clock)
    await store.open()
    ledger = Ledger(store, clock)
    turns = [row for row in recording.rows["turns"] if row["state"] in OPEN_TURN or row["follow"]]
    for row in turns:
        ref = TurnRef(tenant=row["tenant"], turn=row["turn"])
        await ledger.fence(ref)
        await settle(store, ref, clock)
        who = Principal(tenant=row["tenant"], user=row["user"])
        view = await store.turn_view(who, ref.turn)
        kinds = await ledger.kinds(ref, who)

        assert view.state in {TurnState.ABORTED, TurnState.FAILED}
        assert kinds.count("turn_settled") == 1
        left = {effect.state for effect in view.effects if not effect.needs_attention}
        assert not left & (IN_DOUBT | {State.PREPARED, State.COMPENSATING, State.COMMITTED}), view.effects
    await store.close()

    assert len(turns) >= 6


async def test_turn_that_runs_goes_on_and_completes(recording: Recording, clock: Clock, url: str) -> None:
    """Its next reply, an effect of it, what was in doubt, and its end."""
    store = SqlStore(url, clock=clock)
    await store.open()
    ledger = Ledger(store, clock)
    row = next(row for row in recording.rows["turns"] if row["conversation"] == "open")
    ref = TurnRef(tenant=row["tenant"], turn=row["turn"])
    taken = await store.append_text(ledger.step(ref), "and on")
    claim = await ledger.claim(ref, 5)
    assert claim.row is not None
    stored = await store.record_commit(claim.row.ref, claim.row.token, APPLIED)
    while not (answer := await store.complete_turn(ref)).settled:
        for step in answer.steps:
            await carry_out(store, ref, step, clock)
    view = await store.turn_view(Principal(tenant=row["tenant"], user=row["user"]), ref.turn)
    await store.close()

    assert taken
    assert stored.state is State.COMMITTED
    assert stored.commit_order == 2, "it goes on counting where the earlier version had stopped"
    assert view.state is TurnState.COMPLETED


async def settle(store: SqlStore, ref: TurnRef, clock: Clock) -> None:
    """Carry out what the ledger asks for, as the saga and the sweeper do."""
    for _ in range(100):
        answer = await store.next_steps(ref)
        if answer.settled:
            steps = (await store.owned_steps(ref)).steps
            if not steps:
                return
            await asyncio.gather(*(carry_out(store, ref, step, clock) for step in steps))
            continue
        await carry_out(store, ref, answer.steps[0], clock)
    raise AssertionError(f"{ref.turn} isn't settled after a hundred steps")


async def carry_out(store: SqlStore, ref: TurnRef, step: PlannedStep, clock: Clock) -> None:
    effect = EffectRef(tenant=ref.tenant, turn=ref.turn, effect=step.effect)
    match step.action:
        case "wait":
            clock.pass_(step.wait_ms / 1000)
        case "undo":
            row, may = undo_claim(await store.claim_undo(effect))
            if may:
                undone = UndoOutcome(undone=True, evidence={"gone": True})
                await store.record_undo(effect, row.token, undone)
        case "look_up":
            row = await store.begin_lookup(effect)
            await store.record_lookup(effect, row.token, CommitOutcome(applied=True), asked_at=clock.now)
        case "send_again":
            call = CallRef(tenant=ref.tenant, turn=ref.turn, step=step.step, index=step.call.index)
            claim = await store.claim_commit(call, None)
            assert claim.verdict is Verdict.SEND
            assert claim.row is not None
            await store.record_commit(effect, claim.row.token, APPLIED)
        case "follow_job":

            def landed(connection: Connection) -> None:
                unit = TurnUnit.hold(connection, ref, clock.now)
                unit.move(unit.effect(step.effect), Event.JOB_LANDED, commit_order=unit.take_order())

            await store._database.write(landed)


async def test_recording_that_lost_something_is_noticed(recording: Recording, clock: Clock, url: str) -> None:
    """The comparison can fail: an event, a row or a value that is gone is named."""
    store = SqlStore(url, clock=clock)
    await store.open()

    def lose(connection: Connection) -> None:
        connection.exec_driver_sql("DELETE FROM turn_events WHERE kind = 'text_delta'")
        connection.exec_driver_sql("UPDATE effects SET receipt = NULL, title = 'x' WHERE state = 'standing'")

    await store._database.write(lose)
    seen = await what_is_seen(store, recording.rows)
    await store.close()
    found = lacks(seen, recording.seen)

    assert any(".events" in lack for lack in found)
    assert any(".title" in lack for lack in found)


def test_upgrade_is_the_one_that_is_tested(engine: Engine, recording: Recording) -> None:
    with engine.connect() as connection:
        assert current_revision(connection) == recording.revision
