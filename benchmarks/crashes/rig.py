"""What the cells stand on: one sandbox, one Temporal, and a worker process and a wire a side."""

import secrets
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from temporalio.client import Client

from activities.deployment import deployment_tools
from benchmarks.crashes.wire import Wire, wire_to
from tests.e2e.worker_process import WorkerProcess, worker_env
from tests.stack import SandboxProcess, Turns
from turnsaga.client import TurnClient
from turnsaga.store import SqlStore

__all__ = ["SIDES", "Bench", "CrashRig", "crash_rig"]

SIDES: Final[Mapping[str, Sequence[str]]] = {
    "turnsaga": ("-m", "workers", "run"),
    "naive": ("-m", "benchmarks.crashes.worker", "naive"),
    "naive, keyed": ("-m", "benchmarks.crashes.worker", "naive"),
    "dbos": ("-m", "benchmarks.crashes.worker", "dbos"),
    "dbos, keyed": ("-m", "benchmarks.crashes.worker", "dbos"),
}
"""Each side's worker process."""


@dataclass(frozen=True)
class Bench:
    """One side's worker, what it works on, and its wire to the vendors."""

    side: str
    worker: WorkerProcess
    wire: Wire
    queue: str
    database: str

    async def end(self) -> None:
        """End its worker, if it runs."""
        process = self.worker.process
        if process is not None and process.returncode is None:
            await self.worker.end(signal.SIGTERM)


@dataclass(frozen=True)
class CrashRig:
    """What runs, and how to reach it. ``run`` is in every name that is made."""

    client: Client
    sandbox: SandboxProcess
    turns: Turns
    benches: Mapping[str, Bench]
    run: str


@asynccontextmanager
async def crash_rig(
    folder: Path, client: Client, sandbox: SandboxProcess, sides: Sequence[str]
) -> AsyncIterator[CrashRig]:
    """Start the workers of these sides over these vendors; end them again."""
    run = secrets.token_hex(3)
    async with AsyncExitStack() as stack:
        benches: dict[str, Bench] = {}
        for side in sides:
            wire, address = await stack.enter_async_context(wire_to(str(sandbox.http.base_url)))
            benches[side] = _bench(client, sandbox, wire, address, folder=folder, run=run, side=side)
        queue, database = f"crashes-{run}-turnsaga", f"sqlite:///{folder / 'turnsaga' / 'work.db'}"
        (folder / "turnsaga").mkdir(exist_ok=True)
        store = SqlStore(database)
        await store.open()
        stack.push_async_callback(store.close)
        tools = await stack.enter_async_context(deployment_tools(sandbox.vendor))
        for bench in benches.values():
            stack.push_async_callback(bench.end)
            await bench.worker.start()
        turns = Turns(client, store, tools, TurnClient(client, store, task_queue=queue), queue)
        yield CrashRig(client, sandbox, turns, benches, run)


def _bench(
    client: Client, sandbox: SandboxProcess, wire: Wire, address: str, *, folder: Path, run: str, side: str
) -> Bench:
    mine = folder / side.replace(", ", "-")
    mine.mkdir()
    queue, database = f"crashes-{run}-{mine.name}", f"sqlite:///{mine / 'work.db'}"
    env = {
        **worker_env(client, sandbox.vendor, database=database, task_queue=queue),
        "TURNSAGA_PAY_URL": f"{address}/pay",
        "TURNSAGA_CRM_URL": f"{address}/crm",
        "TURNSAGA_BENCH_DATABASE": database,
    }
    return Bench(side, WorkerProcess(env, mine, argv=SIDES[side]), wire, queue, database)
