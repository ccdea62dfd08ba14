"""``python -m benchmarks.worker``: a worker of one side, told by its environment what it works on.

Both sides get the same worker options. On SIGUSR1 the turnsaga side writes how long its ledger
transactions have taken since the last time.
"""

import asyncio
import json
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pydantic_ai.models import Model
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.model import ModelActivities
from benchmarks.bare import BareSaga, bare_activities
from benchmarks.shop import model_of, shop_tools
from turnsaga.connecting import temporal_config
from turnsaga.converting import data_converter
from turnsaga.logs import configure
from turnsaga.plugin import TurnSagaPlugin
from turnsaga.starting import ensure_search_attributes
from turnsaga.store import SqlStore
from turnsaga.store._groups import Group, Transaction
from turnsaga.store._threads import Job
from workflows.agent_turn import AgentTurn

_CACHED: Final = 1000
_THROTTLE: Final = timedelta(milliseconds=100)


async def main() -> None:
    """Work until SIGTERM."""
    configure("production")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    side = os.environ["TURNSAGA_BENCH_SIDE"]
    worker = await (_bare() if side == "bare" else _turnsaga())
    async with worker:
        await asyncio.to_thread(Path(os.environ["TURNSAGA_BENCH_READY"]).touch)
        await stop.wait()


async def _bare() -> Worker:
    client = await Client.connect(**temporal_config())
    return Worker(
        client,
        task_queue=os.environ["TURNSAGA_BENCH_QUEUE"],
        workflows=[BareSaga],
        activities=bare_activities(),
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("benchmarks")
        ),
        max_cached_workflows=_CACHED,
        max_heartbeat_throttle_interval=_THROTTLE,
    )


async def _turnsaga() -> Worker:
    config = temporal_config()
    config["data_converter"] = data_converter
    client = await Client.connect(**config)
    await ensure_search_attributes(client)
    store = SqlStore(os.environ["TURNSAGA_BENCH_DATABASE"])
    await store.open()
    tools = shop_tools()
    await store.write_tool_cards(tools.cards())
    spans = _timed(store)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _tell, spans)
    model = ModelActivities(store, tools, _model)
    return Worker(
        client,
        task_queue=os.environ["TURNSAGA_BENCH_QUEUE"],
        workflows=[AgentTurn],
        activities=model.all(),
        plugins=[TurnSagaPlugin(tools, store)],
        max_cached_workflows=_CACHED,
        max_heartbeat_throttle_interval=_THROTTLE,
    )


def _model(name: str, attempt: int, context: str) -> Model:  # noqa: ARG001  # the same for all of them
    return model_of(name)


def _timed(store: SqlStore) -> list[float]:
    """Note how long each transaction of the store takes on its thread, in milliseconds.

    One that shares a COMMIT takes from its own beginning until that is done.
    """
    spans: list[float] = []
    begun: dict[int, list[float]] = {}
    database: Any = store._database  # noqa: SLF001  # a measurement looks inside
    transact, join = database._transact, Group._join  # noqa: SLF001  # as above

    def timed(transaction: Transaction[Any]) -> Any:  # noqa: ANN401  # as it is told
        members = begun[threading.get_ident()] = [time.perf_counter()]
        try:
            return transact(transaction)
        finally:
            ended = time.perf_counter()
            spans.extend((ended - since) * 1000 for since in members)

    def joined(group: Group, job: Job[Any], transaction: Transaction[Any]) -> None:
        begun[threading.get_ident()].append(time.perf_counter())
        join(group, job, transaction)

    database._transact = timed  # noqa: SLF001  # as above
    Group._join = joined  # type: ignore[assignment,method-assign]  # noqa: SLF001  # as above
    return spans


def _tell(spans: list[float]) -> None:
    path = Path(os.environ["TURNSAGA_BENCH_READY"]).with_suffix(".spans")
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(spans), encoding="utf-8")
    whole.replace(path)
    spans.clear()


if __name__ == "__main__":
    asyncio.run(main())
