"""What a run does that is stopped, told by its history: no more than its undos need."""

import asyncio
import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from tests.stack import WHO, Turns, call, eventually, reply, turns_over
from tests.workflows.steps import THINKING, all_are
from turnsaga import names
from turnsaga.ledger import TurnState
from turnsaga.models import AbortSignal, CallPlan, NextSteps, PlannedStep
from turnsaga.store import Started
from turnsaga.testing import FakeSystem

_ids = itertools.count(1)
# A stopped model request stands by for two seconds and is told within half a second more.
STOOD_BY_S: Final = 3.0


async def two_done(turns: Turns) -> Started:
    """Start a turn that has done two things and whose model speaks."""
    started = await turns.start(
        reply(*(call("note_down", identity=f"N{next(_ids)}") for _ in range(2))), THINKING
    )
    await all_are(turns, started, ["committed", "committed"])

    async def speaks() -> bool:
        page = await turns.store.event_page(WHO, started.ref.turn, after=0)
        return page.events[-1].kind == "text_delta"

    await eventually(speaks)
    return started


async def after_the_signal(turns: Turns, started: Started) -> list[str]:
    """Return the names of the events of the turn's run since it was told to stop."""
    history = await turns.handle(started).fetch_history()
    kinds = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events]
    return kinds[kinds.index("WORKFLOW_EXECUTION_SIGNALED") :]


async def test_stopped_run_begins_with_its_first_undo_and_nothing_wakes_it_besides(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # So slow that the model request meets the fence amid the undos, and so quick that it stands by longer.
    system = FakeSystem(latency=0.3)
    caplog.set_level(logging.WARNING)
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        started = await two_done(turns)
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started)
        await turns.handle(started).result()
        await asyncio.sleep(STOOD_BY_S)
        kinds = await after_the_signal(turns, started)
        await turns.must_agree(system.truth(), started)

    assert view.state is TurnState.ABORTED
    assert "MARKER_RECORDED" not in kinds, "it asked the ledger what to undo first"
    assert kinds.count("ACTIVITY_TASK_SCHEDULED") == kinds.count("ACTIVITY_TASK_COMPLETED") == 2
    assert kinds.count("WORKFLOW_TASK_COMPLETED") == 3
    assert "WORKFLOW_TASK_FAILED" not in kinds
    assert [line.message for line in caplog.records if line.name.startswith("temporalio")] == []


async def test_what_is_held_at_an_abort_is_shown_released_by_its_run(client: Client, tmp_path: Path) -> None:
    system = FakeSystem()
    tools = [system.tool("note_down"), system.tool("hold")]
    async with turns_over(client, tmp_path, tools) as turns:
        started = await turns.start(
            reply(call("note_down", identity="N"), call("hold", identity="H")),
            THINKING,
            policies={"hold": "turn_end"},
        )
        await all_are(turns, started, ["committed", "prepared"])
        await turns.turns.abort(WHO, started.ref.turn)
        await turns.settled(started)
        shown = await turns.handle(started).query(names.LEDGER)
        await turns.must_agree(system.truth(), started)

    assert {effect["tool"]: effect["state"] for effect in shown["effects"]} == {
        "note_down": "compensated",
        "hold": "released",
    }


def told(effect: str, *, settled: bool = False) -> AbortSignal:
    plan = CallPlan(index=0, tool="note_down", kind="effect", summary="x", attempt_ms=1, total_ms=1)
    step = PlannedStep(action="undo", effect=effect, step=1, call=plan)
    return AbortSignal(next=NextSteps(steps=() if settled else (step,), settled=settled))


@pytest.mark.parametrize(
    "payload",
    [
        told("eff_of_nobody"),
        told("", settled=True),
        {"next": {"steps": "many"}},
        {"next": {"steps": [], "settled": False}},
    ],
    ids=["an effect that isn't the turn's", "all is settled", "no steps at all", "nothing to do"],
)
async def test_signal_that_says_anything_to_do_is_an_abort_and_no_more(
    client: Client, tmp_path: Path, payload: AbortSignal | Mapping[str, Any]
) -> None:
    system = FakeSystem()
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        started = await two_done(turns)
        await turns.handle(started).signal(names.ABORT, payload)
        view = await turns.settled(started, within=15)
        await turns.must_agree(system.truth(), started)

    assert view.state is TurnState.ABORTED
    assert [effect.state.value for effect in view.effects] == ["compensated", "compensated"]
