"""``python -m benchmarks.crashes.worker``: the naive or the DBOS side, to be killed and started again."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from benchmarks.crashes.naive import NAIVE_ACTIVITIES, NaiveSaga
from benchmarks.crashes.on_dbos import launch
from turnsaga.connecting import temporal_config
from turnsaga.converting import data_converter


async def main() -> None:
    """Work until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with _dbos() if sys.argv[1] == "dbos" else _naive():
        await asyncio.to_thread(Path(os.environ["TURNSAGA_READY_FILE"]).touch)
        await stop.wait()


@asynccontextmanager
async def _naive() -> AsyncIterator[None]:
    config = temporal_config()
    config["data_converter"] = data_converter
    async with Worker(
        await Client.connect(**config),
        task_queue=os.environ["TURNSAGA_TASK_QUEUE"],
        workflows=[NaiveSaga],
        activities=NAIVE_ACTIVITIES,
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("benchmarks")
        ),
    ):
        yield


@asynccontextmanager
async def _dbos() -> AsyncIterator[None]:
    dbos = await asyncio.to_thread(launch, os.environ["TURNSAGA_BENCH_DATABASE"])
    yield
    await asyncio.to_thread(dbos.destroy)


if __name__ == "__main__":
    asyncio.run(main())
