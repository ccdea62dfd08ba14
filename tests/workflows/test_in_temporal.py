"""What an operator sees and can do in Temporal itself."""

import itertools
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError

from tests.stack import WHO, SandboxProcess, Turns, call, eventually, reply, say, turns_over
from turnsaga import names
from turnsaga.ledger import TurnState
from turnsaga.models import EffectView
from turnsaga.recovery import RecoveryActivities, ensure_sweeper
from turnsaga.store import EngineName, SqlStore
from turnsaga.testing import FakeSystem, Truth

_ids = itertools.count(1)
THINKING = say(*["thinking "] * 400, delay_ms=50)


def charge(invoice: str) -> dict[str, object]:
    return call("charge_card", customer="cus_1", amount="120.00", currency="EUR", invoice=invoice)


async def test_history_reads_as_a_ledger(turns: Turns, sandbox: SandboxProcess) -> None:
    name = f"INV-T{next(_ids)}"
    started = await turns.start(reply(charge(name)), THINKING)
    await turns.reaches(started, "committed", "charge_card")
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    history = await turns.handle(started).fetch_history()
    scheduled = [
        (
            event.activity_task_scheduled_event_attributes.activity_type.name,
            event.user_metadata.summary.data.decode(),
        )
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]

    assert ("charge_card.commit", f'"charge 120.00 EUR for {name}"') in scheduled
    assert ("charge_card.compensate", f'"refund 120.00 EUR, {name}"') in scheduled
    assert not any("cus_1" in str(event) for event in history.events), "arguments stay in the ledger"
    del sandbox


async def test_search_attributes_and_details_follow_the_turn(turns: Turns) -> None:
    name = f"INV-T{next(_ids)}"
    started = await turns.start(reply(charge(name)), say("ok"))
    await turns.settled(started)
    handle = turns.handle(started)
    await handle.result()
    description = await handle.describe()
    attributes = description.typed_search_attributes
    details = await handle.query("__temporal_workflow_metadata")

    assert attributes[SearchAttributeKey.for_keyword(names.TURN_STATUS)] == "completed"
    assert attributes[SearchAttributeKey.for_keyword(names.CONVERSATION_ID)] == started.conversation
    assert attributes[SearchAttributeKey.for_bool(names.NEEDS_ATTENTION)] is False
    assert f"| 1 | `charge_card` | charge 120.00 EUR for {name} | **committed** |" in details.current_details
    assert await description.static_summary() == "agent turn"


async def test_query_ledger_shows_views_without_secrets(turns: Turns) -> None:
    name = f"INV-T{next(_ids)}"
    started = await turns.start(reply(charge(name)), say("ok"))
    await turns.settled(started)
    shown = await turns.handle(started).query(names.LEDGER)

    assert shown["state"] == "completed"
    assert [(effect["tool"], effect["state"]) for effect in shown["effects"]] == [
        ("charge_card", "committed")
    ]
    assert "cus_1" not in str(shown)


async def test_turn_that_was_written_down_and_never_started_is_started(
    client: Client, tmp_path: Path
) -> None:
    """The web tier died, or Temporal was away, between the ledger and Temporal."""
    system = FakeSystem()
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        sweeper = RecoveryActivities(turns.store, client, task_queue=turns.task_queue, adopt=True)

        async def away(*_: object, **__: object) -> None:
            return None

        turns.turns._start_workflow = away  # type: ignore[method-assign]
        started = await turns.start(reply(call("note_down", identity="A")), say("ok"))

        async def swept() -> bool:
            return (await sweeper.sweep()).started > 0

        await eventually(swept)
        view = await turns.settled(started)

    assert view.state is TurnState.COMPLETED
    assert len(system.applied) == 1


async def test_fence_without_a_signal_is_met_by_the_run_and_by_the_sweeper(
    client: Client, tmp_path: Path
) -> None:
    """The web tier died between fence and signal."""
    system = FakeSystem()
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:

        async def dies(turn: str, name: str, payload: object) -> None:
            del turn, name, payload

        turns.turns._signal = dies  # type: ignore[method-assign]
        started = await turns.start(reply(call("note_down", identity="A")), THINKING)
        await turns.reaches(started, "committed", "note_down")
        await turns.turns.abort(WHO, started.ref.turn, reason="stop")
        view = await turns.settled(started)
        await turns.must_agree(system.truth(), started)

    assert view.state is TurnState.ABORTED
    assert view.reason == "stop"


@pytest.mark.parametrize("word", ["confirm", "reject"])
async def test_answer_without_a_signal_is_told_to_the_run_by_the_sweeper(
    client: Client, tmp_path: Path, word: str
) -> None:
    """The web tier, or Temporal, died between the answer and its signal; the window is far from over."""
    system = FakeSystem()
    tool = system.tool("note_down", commits="confirmed")
    async with turns_over(client, tmp_path, [tool]) as turns:

        async def dies(turn: str, name: str, payload: object) -> None:
            del turn, name, payload

        turns.turns._signal = dies  # type: ignore[method-assign]
        started = await turns.start(
            reply(call("note_down", identity="A")), say("ok"), policies={"note_down": "confirmed"}
        )

        async def asked() -> EffectView | None:
            effects = (await turns.view(started)).effects
            return next((one for one in effects if one.held_for == "confirmation"), None)

        shown: EffectView = await eventually(asked)
        answer = turns.turns.confirm if word == "confirm" else turns.turns.reject
        await answer(WHO, shown.effect, version=shown.version, digest=shown.digest)
        sweeper = RecoveryActivities(turns.store, client, task_queue=turns.task_queue, adopt=True)

        async def swept() -> bool:
            return (await sweeper.sweep()).nudged > 0

        await eventually(swept)
        view = await turns.settled(started, within=10)
        await turns.must_agree(system.truth(), started)

    assert view.state is TurnState.COMPLETED
    assert [one.state.value for one in view.effects] == ["committed" if word == "confirm" else "released"]


async def test_effect_in_doubt_is_asked_about_after_its_turn_and_undone_when_it_shows(
    client: Client, tmp_path: Path
) -> None:
    """A look-up that fails for longer than the bound hands the effect over; the sweeper keeps asking."""
    away = [True]
    system = FakeSystem(
        before=lambda phase, _: RuntimeError("away") if phase == "lookup" and away[0] else None,
        after=lambda phase, _: RuntimeError("lost") if phase == "commit" else None,
    )
    tool = system.tool("note_down")
    quick = system.tool("note_down", limits=replace(tool.limits, resolve=timedelta(seconds=1)))
    async with turns_over(client, tmp_path, [quick]) as turns:
        sweeper = RecoveryActivities(turns.store, client, task_queue=turns.task_queue, adopt=True)
        system.latency = 0.5
        started = await turns.start(reply(call("note_down", identity="A")))
        await turns.reaches(started, "committing", "note_down")
        await turns.turns.abort(WHO, started.ref.turn)
        handed_over = await turns.settled(started)
        truth_then: Truth = system.truth()
        away[0] = False
        await sweeper.sweep()

        async def undone() -> bool:
            return list((await turns.states(started)).values()) == ["compensated"]

        await eventually(undone)
        await turns.must_agree(system.truth(), started)

    assert handed_over.settlement is not None
    assert len(handed_over.settlement.unknown) == 1
    assert handed_over.effects[0].needs_attention
    assert truth_then.effects[0].standing == 1
    assert system.truth().effects[0].standing == 0


async def test_sweeper_s_schedule_is_its_queue_s_own_and_takes_a_new_interval(client: Client) -> None:
    for queue, seconds in (("sweep-a", 60), ("sweep-b", 60), ("sweep-a", 15)):
        await ensure_sweeper(client, task_queue=queue, every=timedelta(seconds=seconds))
    found = {}
    for queue in ("sweep-a", "sweep-b"):
        handle = client.get_schedule_handle(f"{queue}-sweep")
        description = await handle.describe()
        found[queue] = [interval.every for interval in description.schedule.spec.intervals]
        await handle.delete()

    assert found == {"sweep-a": [timedelta(seconds=15)], "sweep-b": [timedelta(seconds=60)]}


async def test_sweeper_stops_at_a_temporal_that_isn_t_the_ledger_s(client: Client, tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    await store.open()
    await store.set_engine(EngineName("another-cluster", "default"))
    sweeper = RecoveryActivities(store, client, task_queue="none", adopt=False)

    with pytest.raises(ApplicationError, match="belongs to Temporal 'another-cluster'"):
        await sweeper.sweep()
    await store.close()
