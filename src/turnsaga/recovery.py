"""Workflows that every deployment needs: whatever ended a turn's run, its effects are settled.

The sweeper runs as a Temporal schedule. It compares the ledger's open turns with the runs that Temporal
knows, and starts a recovery where the run is gone. It never undoes anything by itself, and it stops at a
Temporal that isn't the ledger's: "the runs are gone" must not turn into undoing all that lives.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from pydantic import BaseModel, ConfigDict
from temporalio import activity, workflow
from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    WorkflowExecutionStatus,
)
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from turnsaga import names
from turnsaga.models import AbortSignal, Nudge, TurnResult, TurnStart
from turnsaga.saga import TurnSaga
from turnsaga.starting import start_turn_workflow
from turnsaga.store import EngineName, OpenTurn, SqlStore

__all__ = [
    "RecoverTurn",
    "RecoveryActivities",
    "Sweep",
    "SweepReport",
    "engine_of",
    "ensure_sweeper",
    "sweeper_schedule",
]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_GRACE: Final = timedelta(seconds=5)
_BATCH: Final = 500
_ANSWER: Final = timedelta(seconds=10)


class SweepReport(BaseModel):
    """What one sweep did: how many turns it looked at, started, nudged and set to recover."""

    model_config = ConfigDict(frozen=True)

    looked_at: int = 0
    started: int = 0
    nudged: int = 0
    recovered: int = 0


@workflow.defn(name=names.RECOVER_TURN)
class RecoverTurn:
    """Settles a turn whose own run is gone."""

    @workflow.init
    def __init__(self, start: TurnStart) -> None:
        self._saga = TurnSaga.recovering(start)

    @workflow.run
    async def run(self, start: TurnStart) -> TurnResult:  # noqa: ARG002  # the same argument as __init__
        """Settle."""
        return await self._saga.recover()


@workflow.defn(name=names.SWEEP)
class Sweep:
    """Looks once for turns that nobody settles."""

    @workflow.run
    async def run(self) -> SweepReport:
        """Sweep."""
        report: SweepReport = await workflow.execute_activity(
            names.SWEEP_ACTIVITY,
            result_type=SweepReport,
            start_to_close_timeout=timedelta(minutes=2),
            retry_policy=RetryPolicy(maximum_attempts=3),
            summary="look for turns that nobody settles",
        )
        return report


class RecoveryActivities:
    """The sweeper's look at the ledger and at Temporal.

    ``adopt`` lets a ledger change its Temporal by itself, as development wants; elsewhere a person says so.
    """

    def __init__(self, store: SqlStore, client: Client, *, task_queue: str, adopt: bool) -> None:
        self._store = store
        self._client = client
        self._task_queue = task_queue
        self._adopt = adopt

    def all(self) -> Sequence[Callable[..., object]]:
        """Return the activities, for a worker."""
        return [self.sweep]

    @activity.defn(name=names.SWEEP_ACTIVITY)
    async def sweep(self) -> SweepReport:
        """Start, nudge or recover each turn that needs it."""
        await self._check_engine()
        counts = {"started": 0, "nudged": 0, "recovered": 0}
        before = datetime.now(UTC) - _GRACE
        turns = await self._store.turns_to_sweep(before=before, limit=_BATCH)
        for turn in turns:
            done = await self._look_at(turn, before)
            if done is not None:
                counts[done] += 1
                _log.info("sweep.acted", turn=turn.start.turn, action=done)
        return SweepReport(looked_at=len(turns), **counts)

    async def recover(self, start: TurnStart) -> None:
        """Have one turn settled whose run is over; one recovery of it runs at a time.

        Raises:
            ApplicationError: this Temporal isn't the ledger's. Nothing was started.
        """
        await self._check_engine()
        await self._recover(start)

    async def _look_at(self, turn: OpenTurn, before: datetime) -> str | None:
        if turn.ended:
            return await self._recover(turn.start)
        handle = self._client.get_workflow_handle(turn.start.turn)
        try:
            description = await handle.describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            if turn.begun:
                return await self._recover(turn.start)
            # It was written down and never started: nothing can have happened, so it simply starts.
            await start_turn_workflow(
                self._client, turn.start, task_queue=self._task_queue, aborted=turn.fenced
            )
            return "started"
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return await self._recover(turn.start)
        if turn.fenced:
            # The web tier may have died between fence and signal; a further signal changes nothing.
            await handle.signal(names.ABORT, AbortSignal())
            return "nudged"
        if turn.answered:
            # As above, between an answer and its signal.
            for effect in await self._store.answered_effects(turn.ref, before=before):
                await handle.signal(names.DECIDED, Nudge(effect=effect))
            return "nudged"
        return None

    async def _recover(self, start: TurnStart) -> str:
        await self._client.start_workflow(
            names.RECOVER_TURN,
            start,
            id=f"recover-{start.turn}",
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary="settle a turn whose run is gone",
        )
        return "recovered"

    async def _check_engine(self) -> None:
        here = await engine_of(self._client)
        known = await self._store.engine()
        if known == here:
            return
        if known is not None and not self._adopt:
            raise ApplicationError(
                f"this ledger belongs to Temporal {known.cluster!r}/{known.namespace!r}, and this is "
                f"{here.cluster!r}/{here.namespace!r}; nothing was swept. Point the worker at the right one, "
                "or adopt this one on purpose: turnsaga adopt",
                type="ForeignEngine",
                non_retryable=True,
            )
        await self._store.set_engine(here)


async def engine_of(client: Client) -> EngineName:
    """Return which cluster and namespace a client is connected to."""
    info = await client.workflow_service.get_cluster_info(GetClusterInfoRequest(), timeout=_ANSWER)
    return EngineName(info.cluster_id, client.namespace)


def sweeper_schedule(task_queue: str) -> str:
    """Return the id of the schedule that sweeps for this task queue."""
    return f"{task_queue}-sweep"


async def ensure_sweeper(client: Client, *, task_queue: str, every: timedelta) -> None:
    """Have the sweeper run on this task queue at this interval, and once now.

    A schedule that is there already takes the new interval. Each task queue has its own, so that two
    deployments in one namespace don't take each other's.
    """
    name = sweeper_schedule(task_queue)
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(names.SWEEP, id=name, task_queue=task_queue),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )
    try:
        await client.create_schedule(name, schedule, trigger_immediately=True)
    except ScheduleAlreadyRunningError:
        handle = client.get_schedule_handle(name)
        await handle.update(lambda _: ScheduleUpdate(schedule=schedule))
        await handle.trigger()
