"""Every door by which a turn's run can end: each leads to the same end, by the same oracle."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from tests.oracle import must_be_whole, truth_of
from tests.stack import WHO, SandboxProcess, Turns, call, eventually, reply, say
from tests.workflows.steps import charge, charges, invoice
from tests.workflows.stories import (
    begin,
    closed,
    ended,
    halfway,
    happened,
    on_the_wire,
    once_and_undone,
    order_of_undo,
    reset_before,
    sends,
    swept,
    text_of,
    undoing,
)
from turnsaga import names
from turnsaga.client import TurnClient
from turnsaga.ledger import State, TurnState
from turnsaga.models import TurnStart
from turnsaga.store import Started


@pytest.fixture
def turns(own_turns: Turns) -> Turns:
    return own_turns


async def test_turn_that_two_clients_stop_at_once_and_again_while_it_settles_is_settled_once(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    story = await halfway(turns, sandbox)
    turn = story.started.ref.turn
    other = TurnClient(turns.client, turns.store, task_queue=turns.task_queue)
    both = await asyncio.gather(
        turns.turns.abort(WHO, turn, reason="one"), other.abort(WHO, turn, reason="other")
    )
    await turns.reaches(story.started, "compensating", "charge_card")
    again = [await each.abort(WHO, turn, reason="again") for each in (turns.turns, other)]
    view = await must_be_whole(turns, sandbox, story.started)
    late = await other.abort(WHO, turn)

    assert sorted(each.first for each in both) == [False, True]
    assert [each.first for each in (*again, late)] == [False] * 3
    assert view.reason in {"one", "other"}
    assert view.state is late.state is TurnState.ABORTED
    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)
    assert await order_of_undo(turns, story.started) == [
        story.second, story.first, f"ticket/{story.record}"
    ]  # fmt: skip
    assert await closed(turns, story.started) is WorkflowExecutionStatus.COMPLETED


async def test_turn_that_is_cancelled_in_temporal_settles_and_its_run_ends_as_cancelled(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """A4.4: a native cancel, with three commits done and one on the wire, cancels none of the undos."""
    story = await halfway(turns, sandbox)
    await turns.handle(story.started).cancel()
    await turns.reaches(story.started, "compensating", "charge_card")
    await turns.handle(story.started).cancel()
    view = await must_be_whole(turns, sandbox, story.started)

    assert view.state is TurnState.ABORTED
    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)
    assert await closed(turns, story.started) is WorkflowExecutionStatus.CANCELED


async def test_terminated_turn_is_recovered_by_the_sweeper(turns: Turns, sandbox: SandboxProcess) -> None:
    """A7.1: terminated with three effects committed, one in flight and one held."""
    story = await halfway(turns, sandbox)
    await turns.handle(story.started).terminate("an operator")
    await swept(turns)
    view = await must_be_whole(turns, sandbox, story.started)

    assert view.state is TurnState.ABORTED
    assert view.reason == "the run of this turn ended without settling it"
    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)
    assert await order_of_undo(turns, story.started) == [
        story.second, story.first, f"ticket/{story.record}"
    ]  # fmt: skip


async def test_turn_that_is_stopped_and_then_terminated_while_it_settles_is_recovered(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """The undo on the wire is taken over, and what was undone before isn't undone again."""
    story = await halfway(turns, sandbox)
    await turns.turns.abort(WHO, story.started.ref.turn, reason="enough")
    await sandbox.knobs("pay", latency_ms=1500, only={"op": "undo", "identity": story.first})
    await undoing(turns, story.started, story.first)
    await turns.handle(story.started).terminate("an operator")
    await swept(turns)
    view = await must_be_whole(turns, sandbox, story.started)

    assert (view.state, view.reason) == (TurnState.ABORTED, "enough")
    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)


async def test_refund_that_the_vendor_is_still_at_is_waited_for_by_the_recovery(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """A3.4 for an undo: a 409 "in progress" says nothing against it, however often it is said."""
    story = await halfway(turns, sandbox)
    await turns.turns.abort(WHO, story.started.ref.turn)
    await sandbox.knobs(
        "pay",
        apply_after_ms=6000,
        conflict_while_running=True,
        only={"op": "undo", "identity": story.first},
    )
    await undoing(turns, story.started, story.first)
    await turns.handle(story.started).terminate("an operator")
    await swept(turns)
    await must_be_whole(turns, sandbox, story.started)

    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)


@pytest.mark.parametrize("limit", ["execution_timeout", "run_timeout"])
async def test_turn_whose_run_is_timed_out_by_temporal_is_recovered(
    turns: Turns, sandbox: SandboxProcess, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    limits: dict[str, Any] = {limit: timedelta(seconds=8)}

    async def limited(started: Started) -> None:
        start = TurnStart(tenant=started.ref.tenant, turn=started.ref.turn, conversation=started.conversation)
        await turns.client.start_workflow(
            names.TURN_WORKFLOW, start, id=started.ref.turn, task_queue=turns.task_queue, **limits
        )

    with monkeypatch.context() as starting:
        starting.setattr(turns.turns, "_start_workflow", limited)
        story = await begin(turns, sandbox, answers_after_ms=12_000)
    await on_the_wire(turns, sandbox, story)
    status = await closed(turns, story.started)
    await swept(turns)
    view = await must_be_whole(turns, sandbox, story.started)

    assert status is WorkflowExecutionStatus.TIMED_OUT
    assert view.state is TurnState.ABORTED
    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)


async def test_turn_that_is_reset_to_before_its_charge_charges_once_and_goes_on(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """A7.2, without an abort: the charge is found in the ledger, and isn't made again."""
    name, second = invoice(), invoice()
    started = await turns.start(
        reply(charge(name)), say(*["thinking "] * 60, delay_ms=50, calls=[charge(second)]), say("Done.")
    )
    await turns.reaches(started, "committed", "charge_card")
    run = await reset_before(turns, started, "charge_card.commit")
    view = await must_be_whole(turns, sandbox, started)
    latest = (await turns.handle(started).describe()).run_id

    assert view.state is TurnState.COMPLETED
    assert await turns.states(started) == {
        f"charge_card {name}": "committed",
        f"charge_card {second}": "committed",
    }
    assert [await charges(sandbox, each) for each in (name, second)] == [1, 1]
    assert await sends(sandbox, name) == 1, "what the ledger knows isn't sent again"
    assert latest == run
    assert await closed(turns, started) is WorkflowExecutionStatus.COMPLETED


async def test_text_of_a_turn_that_is_reset_while_it_streams_is_not_doubled(turns: Turns) -> None:
    name = invoice()
    started = await turns.start(reply(charge(name)), say(*["word "] * 40, delay_ms=50), say("Done."))
    await eventually(lambda: text_of(turns, started), what="some text")
    await reset_before(turns, started, "charge_card.commit")
    await turns.settled(started)

    assert await text_of(turns, started) == "word " * 40


@pytest.mark.parametrize("kind", ["keyed", "once"])
async def test_turn_that_is_reset_with_a_call_on_the_wire_has_one_effect_and_goes_on(
    turns: Turns, sandbox: SandboxProcess, kind: str
) -> None:
    """Two attempts of one call are out at once, of the run before and of the one after."""
    before, name = invoice(), invoice()
    flying = charge(name) if kind == "keyed" else call("create_record", kind="ticket", id=name)
    system, identity = ("pay", name) if kind == "keyed" else ("crm", f"ticket/{name}")
    await sandbox.knobs(system, latency_ms=2000, only={"op": "apply", "identity": identity})
    started = await turns.start(reply(charge(before)), reply(flying), say("Done."))

    async def arrived() -> bool:
        return await sends(sandbox, identity) == 1

    await eventually(arrived, what="a call on the wire")
    await reset_before(turns, started, "charge_card.commit")
    view = await must_be_whole(turns, sandbox, started)
    applied = [true.applied for true in (await truth_of(sandbox)).effects if true.identity == identity]

    assert view.state is TurnState.COMPLETED
    assert [effect.state for effect in view.effects] == [State.COMMITTED] * 2
    assert applied == [1]
    assert await sends(sandbox, before) == 1
    assert await sends(sandbox, identity) <= (2 if kind == "keyed" else 1)


async def test_turn_that_is_reset_while_its_abort_settles_is_settled_once(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """A7.2: reset to before the charge, with the abort among the signals that are applied again."""
    story = await halfway(turns, sandbox)
    await turns.turns.abort(WHO, story.started.ref.turn, reason="enough")
    await sandbox.knobs("pay", latency_ms=1500, only={"op": "undo", "identity": story.first})
    await undoing(turns, story.started, story.first)
    await reset_before(turns, story.started, "charge_card.commit")
    view = await must_be_whole(turns, sandbox, story.started)

    assert (view.state, view.reason) == (TurnState.ABORTED, "enough")
    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)
    assert await closed(turns, story.started) is WorkflowExecutionStatus.COMPLETED


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "completed"])
async def test_turn_that_is_reset_after_its_end_stays_as_it_ended(
    turns: Turns, sandbox: SandboxProcess, *, stopped: bool
) -> None:
    name = invoice()
    started, before = await ended(turns, name, stopped=stopped)
    asked = len((await sandbox.truth())["calls"])
    await reset_before(turns, started, "charge_card.commit")
    await closed(turns, started)
    view = await must_be_whole(turns, sandbox, started)

    assert view == before
    assert len((await sandbox.truth())["calls"]) == asked
    assert await charges(sandbox, name) == 1


async def test_turn_that_is_reset_while_a_recovery_settles_it_is_settled_once(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """Two runs settle it side by side; the ledger and the keys keep them from doing anything twice."""
    story = await halfway(turns, sandbox)
    await turns.handle(story.started).terminate("an operator")
    await sandbox.knobs("pay", latency_ms=1000, only={"op": "undo"})
    await swept(turns)
    await undoing(turns, story.started, story.first)
    await reset_before(turns, story.started, "charge_card.commit")
    await must_be_whole(turns, sandbox, story.started)
    recovery = turns.client.get_workflow_handle(f"recover-{story.started.ref.turn}")

    assert (await recovery.result())["state"] == "aborted"
    assert await closed(turns, story.started) is WorkflowExecutionStatus.COMPLETED
    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)


@pytest.mark.parametrize("how", ["cancelled", "terminated"])
async def test_recovery_that_is_ended_in_temporal_settles_all_the_same(
    turns: Turns, sandbox: SandboxProcess, how: str
) -> None:
    story = await halfway(turns, sandbox)
    await turns.handle(story.started).terminate("an operator")
    await sandbox.knobs("pay", latency_ms=1000, only={"op": "undo"})
    await swept(turns)
    recovery = turns.client.get_workflow_handle(f"recover-{story.started.ref.turn}")
    await undoing(turns, story.started, story.first)
    if how == "cancelled":
        await recovery.cancel()
        await recovery.cancel()
        assert (await recovery.result())["state"] == "aborted"
    else:
        await recovery.terminate("the operator again")
        await swept(turns)
    await must_be_whole(turns, sandbox, story.started)

    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)
