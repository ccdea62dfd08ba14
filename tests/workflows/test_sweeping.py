"""The sweeper: what it leaves alone, what it finds, and that several of them settle a turn once."""

import asyncio
from collections import Counter

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from tests.oracle import must_be_whole
from tests.stack import WHO, SandboxProcess, Turns, eventually, reply, say
from tests.workflows.steps import charge, charges, invoice
from tests.workflows.stories import (
    closed,
    ended,
    halfway,
    happened,
    once_and_undone,
    sweeper_of,
    swept,
    undoing,
)
from turnsaga.ledger import TurnState
from turnsaga.models import TurnStart
from turnsaga.recovery import SweepReport
from turnsaga.store import Started


@pytest.fixture
def turns(own_turns: Turns) -> Turns:
    return own_turns


async def test_sweepers_that_meet_settle_a_turn_once(turns: Turns, sandbox: SandboxProcess) -> None:
    """Two that look at the same moment, and one that comes while the turn is being settled."""
    story = await halfway(turns, sandbox)
    await turns.handle(story.started).terminate("an operator")
    await sandbox.knobs("pay", latency_ms=700, only={"op": "undo"})
    sweepers = [sweeper_of(turns), sweeper_of(turns)]
    reports = await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers for _ in range(2)))
    await undoing(turns, story.started, story.first)
    reports += await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers))
    await must_be_whole(turns, sandbox, story.started)
    undos = Counter(
        each["identity"]
        for each in (await sandbox.truth())["calls"]
        if each["op"] == "undo" and each["identity"] in story.identities
    )

    assert [report.recovered for report in reports] == [1] * 6
    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)
    assert undos == {story.first: 1, story.second: 1, f"ticket/{story.record}": 1}


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "completed"])
async def test_sweeper_that_looked_before_a_turn_s_end_changes_nothing_of_it(
    turns: Turns, sandbox: SandboxProcess, *, stopped: bool
) -> None:
    """Between its look at the ledger and its look at Temporal, the turn and its run have ended."""
    name = invoice()
    started, before = await ended(turns, name, stopped=stopped)
    asked = len((await sandbox.truth())["calls"])
    await sweeper_of(turns).recover(start_of(started))
    recovery = turns.client.get_workflow_handle(f"recover-{started.ref.turn}")
    result = await recovery.result()
    view = await must_be_whole(turns, sandbox, started)

    assert result["state"] == before.state
    assert view == before
    assert len((await sandbox.truth())["calls"]) == asked
    assert await charges(sandbox, name) == 1


async def test_turns_that_live_are_left_alone_by_every_sweep(turns: Turns, sandbox: SandboxProcess) -> None:
    """One that is streaming with commits done, one on the wire and one held; and one that is queued."""
    story = await halfway(turns, sandbox, answers_after_ms=3000)
    name = invoice()
    queued = await turns.start(
        reply(charge(name)), say("Done."), conversation=story.started.conversation, on_busy="queue"
    )
    sweeper = sweeper_of(turns)
    reports = [await sweeper.sweep() for _ in range(30)]
    charged = await turns.reaches(story.started, "committed", "charge_card")
    reports += [await sweeper.sweep() for _ in range(10)]
    states = await turns.states(story.started)
    signals = [
        event
        for started in (story.started, queued)
        for event in (await turns.handle(started).fetch_history()).events
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]
    waiting = (await turns.view(queued)).state
    await turns.turns.abort(WHO, story.started.ref.turn)
    ended = await turns.settled(story.started)
    after = await must_be_whole(turns, sandbox, queued)

    assert reports == [SweepReport(looked_at=2)] * 40
    assert charged.state == "committed"
    assert set(states.values()) == {"committed", "committing", "prepared"}
    assert signals == []
    assert waiting is TurnState.QUEUED
    assert (ended.state, after.state) == (TurnState.ABORTED, TurnState.COMPLETED)
    assert await happened(sandbox, story) == once_and_undone(story)
    assert await charges(sandbox, name) == 1


async def test_turn_whose_run_temporal_has_deleted_is_recovered(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """Its history is gone, as it is after the retention or from a store that was lost."""
    story = await halfway(turns, sandbox)
    await turns.client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=turns.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=story.started.ref.turn),
        )
    )
    await eventually(lambda: _is_missing(turns, story.started), what="a run that is missing")
    await swept(turns)
    view = await must_be_whole(turns, sandbox, story.started)

    assert view.state is TurnState.ABORTED
    assert await turns.states(story.started) == story.undone
    assert await happened(sandbox, story) == once_and_undone(story)


async def test_sweeper_tells_a_run_of_its_fence_and_starts_no_recovery_beside_it(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """The web tier died between fence and signal: the run that lives settles, within one sweep."""
    started = await turns.start(say("late", delay_ms=60_000))
    await eventually(lambda: _has_begun(turns, started), what="a model request")

    async def dies(turn: str, name: str, payload: object) -> None:
        del turn, name, payload

    turns.turns._signal = dies  # type: ignore[method-assign]
    await turns.turns.abort(WHO, started.ref.turn, reason="stop")
    report = await sweeper_of(turns).sweep()
    view = await must_be_whole(turns, sandbox, started, within=10)

    assert report == SweepReport(looked_at=1, nudged=1)
    assert (view.state, view.reason) == (TurnState.ABORTED, "stop")
    assert await closed(turns, started) is WorkflowExecutionStatus.COMPLETED


def start_of(started: Started) -> TurnStart:
    return TurnStart(tenant=started.ref.tenant, turn=started.ref.turn, conversation=started.conversation)


async def _is_missing(turns: Turns, started: Started) -> bool:
    try:
        await turns.handle(started).describe()
    except RPCError as error:
        return error.status is RPCStatusCode.NOT_FOUND
    return False


async def _has_begun(turns: Turns, started: Started) -> bool:
    return bool((await turns.handle(started).describe()).raw_description.pending_activities)
