"""What is asked of Temporal. The functions that judge are pure."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetClusterInfoRequest,
)
from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleDescription,
    WorkflowExecutionStatus,
)
from temporalio.service import RPCError, RPCStatusCode

from turnsaga.cli._doctor._clocks import judge_ahead
from turnsaga.cli._doctor._running import Unasked
from turnsaga.cli._session import connect_to_temporal
from turnsaga.deployment import Check, Finding
from turnsaga.errors import EngineUnavailable
from turnsaga.recovery import sweeper_schedule
from turnsaga.starting import SEARCH_ATTRIBUTES
from turnsaga.store import EngineName

__all__ = ["Sweeps", "TemporalChecks", "judge_attributes", "judge_engine", "judge_server", "judge_sweeps"]

_RPC: Final = timedelta(seconds=5)
# What the tests run with. Older ones aren't known to fail; they aren't known to work either.
_TESTED: Final = (1, 32)
_POLLED_WITHIN: Final = timedelta(minutes=2)
_LATE_BY: Final = timedelta(seconds=60)
_ADDRESS: Final = "see that Temporal runs, and TEMPORAL_ADDRESS, TEMPORAL_TLS and TEMPORAL_API_KEY"


class TemporalChecks:
    """Checks of the Temporal that the environment names, for one task queue."""

    def __init__(self, task_queue: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._task_queue = task_queue
        self._clock = clock
        self._connecting: asyncio.Task[Client] | None = None

    def all(self) -> tuple[Check, ...]:
        """Return them."""
        return (
            Check("temporal.connection", self.connection),
            Check("temporal.namespace", self.namespace),
            Check("temporal.search_attributes", self.search_attributes),
            Check("temporal.workers", self.workers),
            Check("temporal.sweeper", self.sweeper),
            Check("clock.temporal", self.temporal_clock),
        )

    async def client(self) -> Client:
        """Return a client; the checks share one connection.

        Raises:
            Unasked: Temporal can't be reached.
        """
        try:
            return await self._connected()
        except EngineUnavailable as error:
            raise Unasked("Temporal can't be reached", "temporal.connection") from error

    async def engine(self) -> EngineName:
        """Return which cluster and namespace this is.

        Raises:
            Unasked: Temporal can't be reached.
        """
        client = await self.client()
        info = await client.workflow_service.get_cluster_info(GetClusterInfoRequest(), timeout=_RPC)
        return EngineName(info.cluster_id, client.namespace)

    async def connection(self) -> Finding:
        """Ask whether Temporal answers, and which version it is."""
        try:
            client = await self._connected()
            info = await client.workflow_service.get_cluster_info(GetClusterInfoRequest(), timeout=_RPC)
        except EngineUnavailable as error:
            return Finding.fail(f"{error.address} doesn't answer: {error.reason}", _ADDRESS)
        except RPCError as error:
            return Finding.fail(f"it refuses the question: {error.status.name}", _ADDRESS)
        return judge_server(info.server_version, client.service_client.config.target_host)

    async def namespace(self) -> Finding:
        """Ask whether the namespace is there."""
        client = await self.client()
        try:
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=client.namespace), timeout=_RPC
            )
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return Finding.fail(
                    f"there is no namespace {client.namespace!r}",
                    "set TEMPORAL_NAMESPACE, or create it: temporal operator namespace create "
                    f"--namespace {client.namespace}",
                )
            return Finding.fail(f"{client.namespace!r} can't be read: {error.status.name}", _ADDRESS)
        return Finding.ok(f"{client.namespace!r}")

    async def search_attributes(self) -> Finding:
        """Ask whether the search attributes of turns are registered, with the right types."""
        client = await self.client()
        try:
            listed = await client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace=client.namespace), timeout=_RPC
            )
        except RPCError as error:
            raise _unasked(error) from error
        return judge_attributes(listed.custom_attributes)

    async def workers(self) -> Finding:
        """Ask whether anybody polls the task queue, for workflows and for activities."""
        silent: list[str] = []
        identities: set[str] = set()
        for kind, polled in (await self._pollers()).items():
            live = {name for name, at in polled.items() if self._clock() - at < _POLLED_WITHIN}
            identities |= live
            if not live:
                silent.append(kind)
        if silent:
            return Finding.warn(
                f"nobody polls task queue {self._task_queue!r} for {' or '.join(silent)}",
                "start a worker on it, or set TURNSAGA_TASK_QUEUE to the one that workers poll",
            )
        return Finding.ok(f"{len(identities)} on {self._task_queue!r}")

    async def sweeper(self) -> Finding:
        """Ask whether the sweeper's schedule is there, runs, and its last sweep went well."""
        client = await self.client()
        handle = client.get_schedule_handle(sweeper_schedule(self._task_queue))
        try:
            description = await handle.describe(rpc_timeout=_RPC)
            failed = await _last_sweep_failed(client, description)
        except RPCError as error:
            # A namespace that isn't there is not found, too.
            if error.status is RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
                return Finding.fail(
                    f"there is no schedule {handle.id!r}: nobody settles what a dead run leaves",
                    "start a worker: it makes the schedule",
                )
            raise _unasked(error) from error
        return judge_sweeps(_sweeps(description, failed=failed), self._clock())

    async def temporal_clock(self) -> Finding:
        """Look for a Temporal whose clock is ahead, by what it noted: it can't be asked for the time."""
        polled = [at for kind in (await self._pollers()).values() for at in kind.values()]
        return judge_ahead("Temporal", max(polled, default=None), self._clock())

    async def _pollers(self) -> Mapping[str, Mapping[str, datetime]]:
        """Return who polls for what, and when Temporal last heard of them."""
        client = await self.client()
        found: dict[str, dict[str, datetime]] = {}
        for kind, number in (
            ("workflows", TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW),
            ("activities", TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY),
        ):
            try:
                answer = await client.workflow_service.describe_task_queue(
                    DescribeTaskQueueRequest(
                        namespace=client.namespace,
                        task_queue=TaskQueue(name=self._task_queue),
                        task_queue_type=number,
                    ),
                    timeout=_RPC,
                )
            except RPCError as error:
                raise _unasked(error) from error
            found[kind] = {
                poller.identity: poller.last_access_time.ToDatetime(tzinfo=UTC) for poller in answer.pollers
            }
        return found

    async def _connected(self) -> Client:
        if self._connecting is None:
            self._connecting = asyncio.create_task(connect_to_temporal(done="nothing was asked of it"))
        # Shielded: a check whose time is over must not take the connection from the others.
        return await asyncio.shield(self._connecting)


@dataclass(frozen=True)
class Sweeps:
    """What Temporal says of the sweeper's schedule; ``last`` is when it started last, or was made."""

    name: str
    paused: bool
    note: str | None
    every: timedelta
    last: datetime
    failed: str | None = None


def judge_server(version: str, address: str) -> Finding:
    """Return whether this version of the server is one that is tested with."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < _TESTED:
        least = ".".join(map(str, _TESTED))
        return Finding.warn(
            f"Temporal {version} at {address} is older than what is tested with", f"upgrade it to {least}"
        )
    return Finding.ok(f"Temporal {version or 'of unknown version'} at {address}")


def judge_attributes(registered: Mapping[str, "IndexedValueType.ValueType"]) -> Finding:
    """Return whether the search attributes of turns are among those that are registered."""
    wrong = [
        name for name, kind in SEARCH_ATTRIBUTES.items() if name in registered and registered[name] != kind
    ]
    if wrong:
        return Finding.fail(
            f"registered with another type: {', '.join(wrong)}",
            "remove them with temporal operator search-attribute remove, and start a worker",
        )
    missing = [name for name in SEARCH_ATTRIBUTES if name not in registered]
    if missing:
        commands = "; ".join(
            f"temporal operator search-attribute create --name {name} --type {_type(SEARCH_ATTRIBUTES[name])}"
            for name in missing
        )
        return Finding.fail(f"not registered: {', '.join(missing)}", f"start a worker, or: {commands}")
    return Finding.ok(", ".join(SEARCH_ATTRIBUTES))


def judge_sweeps(sweeps: Sweeps, now: datetime) -> Finding:
    """Return whether the sweeper does its work."""
    if sweeps.paused:
        why = f" ({sweeps.note})" if sweeps.note else ""
        return Finding.fail(
            f"schedule {sweeps.name!r} is paused{why}: nobody settles what a dead run leaves",
            f"temporal schedule toggle --schedule-id {sweeps.name} --unpause --reason mended",
        )
    if sweeps.failed is not None:
        return Finding.fail(
            f"the last sweep ended as {sweeps.failed}",
            f"see the newest run of {sweeps.name} in Temporal's UI; ledger.engine may say why",
        )
    idle = now - sweeps.last
    if idle > 2 * sweeps.every + _LATE_BY:
        return Finding.warn(
            f"the last sweep began {idle.total_seconds():.0f} s ago, and one is due every "
            f"{sweeps.every.total_seconds():.0f} s",
            f"see whether a sweep of {sweeps.name!r} is stuck: no worker, or one that is busy",
        )
    return Finding.ok(
        f"every {sweeps.every.total_seconds():.0f} s, last {max(idle.total_seconds(), 0):.0f} s ago"
    )


def judge_engine(known: EngineName | None, here: EngineName, *, adopts: bool) -> Finding:
    """Return whether the ledger belongs to this Temporal; ``adopts`` if the sweeper changes that itself."""
    if known is None:
        return Finding.ok("the ledger belongs to no Temporal yet; the first sweep notes this one")
    if known == here:
        return Finding.ok(f"{here.cluster}/{here.namespace}")
    what = (
        f"the ledger belongs to Temporal {known.cluster}/{known.namespace}, and this is "
        f"{here.cluster}/{here.namespace}"
    )
    if adopts:
        return Finding.warn(what, "the next sweep adopts this one, as development does; see that it is meant")
    return Finding.fail(
        f"{what}: nothing is swept",
        "point TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE, or TURNSAGA_DATABASE, at those that belong together",
    )


def _sweeps(description: ScheduleDescription, *, failed: str | None) -> Sweeps:
    info = description.info
    intervals = description.schedule.spec.intervals
    return Sweeps(
        name=description.id,
        paused=description.schedule.state.paused,
        note=description.schedule.state.note,
        every=intervals[0].every if intervals else timedelta(0),
        last=max([info.created_at, *(action.started_at for action in info.recent_actions)]),
        failed=failed,
    )


async def _last_sweep_failed(client: Client, description: ScheduleDescription) -> str | None:
    """Return how the newest sweep that has ended ended, unless well."""
    for recent in reversed(description.info.recent_actions):
        if not isinstance(recent.action, ScheduleActionExecutionStartWorkflow):
            continue
        run = client.get_workflow_handle(
            recent.action.workflow_id, run_id=recent.action.first_execution_run_id
        )
        try:
            status = (await run.describe(rpc_timeout=_RPC)).status
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None  # past the namespace's retention
            raise
        if status is WorkflowExecutionStatus.RUNNING:
            continue
        if status is None or status is WorkflowExecutionStatus.COMPLETED:
            return None
        return status.name.lower()
    return None


def _type(kind: "IndexedValueType.ValueType") -> str:
    return IndexedValueType.Name(kind).removeprefix("INDEXED_VALUE_TYPE_").title()


def _unasked(error: RPCError) -> Unasked:
    return Unasked(f"Temporal answers {error.status.name}", "temporal.namespace, and what this client may do")
