"""``python -m benchmarks.worker``: a worker of one side, told by its environment what it works on.

Both sides get the same worker options. On SIGTERM the turnsaga side writes how long its ledger
transactions took.
"""

import asyncio
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, event
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.model import ModelActivities
from benchmarks.bare import BareSaga, bare_activities
from benchmarks.shop import effects_of, shop_tools, two_requests
from turnsaga.connecting import temporal_config
from turnsaga.plugin import TurnSagaPlugin
from turnsaga.starting import ensure_search_attributes
from turnsaga.store import SqlStore
from workflows.agent_turn import AgentTurn

__all__ = ["CACHED", "THROTTLE"]

CACHED: Final = 1000
THROTTLE: Final = timedelta(milliseconds=100)


async def main() -> None:
    """Work until SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    side = os.environ["TURNSAGA_BENCH_SIDE"]
    worker = await (_bare() if side == "bare" else _turnsaga(stop))
    async with worker:
        Path(os.environ["TURNSAGA_BENCH_READY"]).touch()
        await stop.wait()


async def _bare() -> Worker:
    client = await Client.connect(**temporal_config())
    return Worker(
        client,
        task_queue=os.environ["TURNSAGA_BENCH_QUEUE"],
        workflows=[BareSaga],
        activities=bare_activities(),  # type: ignore[arg-type]
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("benchmarks")
        ),
        max_cached_workflows=CACHED,
        max_heartbeat_throttle_interval=THROTTLE,
    )


async def _turnsaga(stop: asyncio.Event) -> Worker:
    config = temporal_config()
    config["data_converter"] = pydantic_data_converter
    client = await Client.connect(**config)
    await ensure_search_attributes(client)
    store = SqlStore(os.environ["TURNSAGA_BENCH_DATABASE"])
    await store.open()
    tools = shop_tools()
    await store.write_tool_cards(tools.cards())
    spans = _timed(store)
    asyncio.get_running_loop().create_task(_report(stop, spans))
    model = ModelActivities(store, tools, lambda name, *_: two_requests(effects_of(name)))
    return Worker(
        client,
        task_queue=os.environ["TURNSAGA_BENCH_QUEUE"],
        workflows=[AgentTurn],
        activities=model.all(),
        plugins=[TurnSagaPlugin(tools, store)],
        max_cached_workflows=CACHED,
        max_heartbeat_throttle_interval=THROTTLE,
    )


def _timed(store: SqlStore) -> list[float]:
    """Note how long each transaction holds its connection, in milliseconds."""
    spans: list[float] = []
    engine = store._database.engine  # noqa: SLF001  # a measurement looks inside
    begun: dict[int, float] = {}

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        begun[id(connection.connection.dbapi_connection)] = time.perf_counter()

    @event.listens_for(engine, "commit")
    def commit(connection: Connection) -> None:
        # Told just before the commit; what that takes is told apart by the driver's own figures.
        start = begun.pop(id(connection.connection.dbapi_connection), None)
        if start is not None:
            spans.append((time.perf_counter() - start) * 1000)

    return spans


async def _report(stop: asyncio.Event, spans: list[float]) -> None:
    await stop.wait()
    path = Path(os.environ["TURNSAGA_BENCH_READY"]).with_suffix(".spans")
    told: Any = spans
    path.write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
