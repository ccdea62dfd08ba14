"""A storm of cancels and aborts on turns of three commits, also while they are rolled back.

TURNSAGA_CAMPAIGN sets how many turns.
"""

import asyncio
import itertools
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from tests.e2e.api import Stack
from tests.e2e.judging import calls_of, judge, taking, three_commits
from tests.stack import eventually
from turnsaga import names

# The short form runs always; the figure in the docs is of 500.
TURNS = int(os.environ.get("TURNSAGA_CAMPAIGN", "30"))
AT_ONCE = 6
_ids = itertools.count(1)
_log = logging.getLogger(__name__)
How = Literal["abort", "cancel", "both"]
HOWS: tuple[How, ...] = ("abort", "cancel", "both")
CANCEL_REQUESTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
TASK_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


@dataclass(frozen=True)
class Met:
    """A turn and what met it; ``again`` is what met it once more while it was rolled back, if anything did.

    ``accepted`` tells whether the abort was taken; None where only a cancel came, which Temporal takes
    as long as there is a run.
    """

    turn: str
    how: How
    accepted: bool | None
    again: How | None


@dataclass(frozen=True)
class Storm:
    """A stack, and a client of its Temporal."""

    stack: Stack
    client: Client

    async def undisturbed(self) -> float:
        """Return how many seconds a turn takes that nothing meets."""
        began = time.monotonic()
        await self.stack.settled(await self._start())
        return time.monotonic() - began

    async def meet(self, how: How, again: How | None, *, within_s: float) -> Met:
        """Start a turn, and let it be met at a random moment."""
        turn = await self._start()
        await asyncio.sleep(random.uniform(0, within_s))
        accepted = await self._strike(turn, how)
        if again is not None and await self._is_rolled_back(turn):
            assert not await self._strike(turn, again), "a second abort was taken for the first"
        else:
            again = None
        await self.stack.settled(turn)
        return Met(turn, how, accepted, again)

    async def _start(self) -> str:
        return await self.stack.start(*three_commits(f"ST{next(_ids)}"))

    async def _strike(self, turn: str, how: How) -> bool | None:
        """Abort, cancel, or both at once; tell whether the abort was the one that stopped the turn."""
        async with asyncio.TaskGroup() as both:
            abort = both.create_task(self._abort(turn)) if how != "cancel" else None
            if how != "abort":
                both.create_task(self._cancel(turn))
        return None if abort is None else abort.result()

    async def _abort(self, turn: str) -> bool:
        answer = await self.stack.web.post(f"/v1/turns/{turn}/abort", json={"reason": "storm"})
        assert answer.status_code in {200, 202}
        return answer.status_code == 202

    async def _cancel(self, turn: str) -> None:
        try:
            await self.client.get_workflow_handle(turn).cancel()
        except RPCError as error:
            # Its run may be over already.
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    async def _is_rolled_back(self, turn: str) -> bool:
        """Wait until something of the turn is being undone; False once it has ended without."""

        async def there() -> str | None:
            view = await self.stack.view(turn)
            undoing = any(effect["state"] == "compensating" for effect in view["effects"])
            return "undoing" if undoing else "ended" if view["settlement"] else None

        return bool(await eventually(there, within=60, what="a roll-back") == "undoing")


@pytest.mark.campaign
@pytest.mark.timeout(3600)
async def test_every_turn_that_a_storm_of_cancels_and_aborts_meets_is_settled_whole(stack: Stack) -> None:
    storm = Storm(stack, await Client.connect(stack.temporal))
    lane = asyncio.Semaphore(AT_ONCE)
    async with taking(stack, 20, 80):
        lasts = median(await asyncio.gather(*(storm.undisturbed() for _ in range(AT_ONCE))))

        async def one(number: int) -> Met:
            # Two in three also while they are rolled back, if they come to that.
            again = random.choice(HOWS) if number % 3 else None
            async with lane:
                return await storm.meet(HOWS[number // 3 % 3], again, within_s=lasts)

        began = time.monotonic()
        met = await asyncio.gather(*(one(number) for number in range(TURNS)))
        took = time.monotonic() - began
    truth = (await stack.sandbox.get("/_truth")).json()
    ends = Counter[str]()
    for each in met:
        view = await judged(storm, each, truth)
        again = f", {each.again} again" if each.again else ""
        ends[f"{each.how}{again}: {view['state']}"] += 1

    figures = {"turns": len(met), "seconds": round(took, 1), **dict(sorted(ends.items()))}
    _log.info("storm: %s", json.dumps(figures))
    assert sum(ends[end] for end in ends if end.endswith(": aborted")) >= TURNS / 3, "it met few that ran"
    assert any(each.again for each in met), "no turn was met while it was rolled back"


async def judged(storm: Storm, met: Met, truth: dict[str, Any]) -> dict[str, Any]:
    """Judge one turn, and the history of its run."""
    end = str((await storm.stack.view(met.turn))["state"])
    if met.accepted or met.again:
        assert end == "aborted"
    elif met.how == "abort":
        assert end == "completed", "an abort that came too late stopped it"
    view = await judge(storm.stack, met.turn, end)
    undone = sorted(effect["identity"] for effect in view["effects"] if effect["state"] == "compensated")
    assert sorted(calls_of(truth, view, "undo")) == undone, "each undo is asked for once"

    status = await eventually(lambda: closed(storm.client, met.turn), what="the end of the run")
    history = await storm.client.get_workflow_handle(met.turn).fetch_history()
    cancel = next((event.event_id for event in history.events if event.event_type == CANCEL_REQUESTED), None)
    if cancel is not None and end == "aborted":
        assert status is WorkflowExecutionStatus.CANCELED
        assert begun_after(history.events, cancel) == [], "a run that knew of its cancel went on"
    else:
        assert status is WorkflowExecutionStatus.COMPLETED
    return view


async def closed(client: Client, turn: str) -> WorkflowExecutionStatus | None:
    status = (await client.get_workflow_handle(turn).describe()).status
    return None if status is WorkflowExecutionStatus.RUNNING else status


def begun_after(events: Sequence[HistoryEvent], cancel: int) -> list[str]:
    """Return the activities of the way forward that were asked for by a task that knew of the cancel."""
    knew = next(
        event.event_id
        for event in events
        if event.event_type == TASK_COMPLETED
        and event.workflow_task_completed_event_attributes.started_event_id > cancel
    )
    asked = [event.activity_task_scheduled_event_attributes for event in events]
    return [
        one.activity_type.name
        for one in asked
        if one.workflow_task_completed_event_id >= knew
        and one.activity_type.name.endswith((".commit", ".prepare", names.MODEL_REQUEST))
    ]
