"""What the matrix stands on: vendors, a ledger, and a worker process a side that can be killed."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client

from activities.deployment import deployment_tools
from benchmarks.leaks.worker import mail_depends_on_the_rest
from tests.stack import REPOSITORY, SandboxProcess, Turns
from turnsaga.client import TurnClient
from turnsaga.store import SqlStore

__all__ = ["LeakRig", "WorkerProcess", "leak_rig"]


@dataclass
class WorkerProcess:
    """One side's worker."""

    side: str
    env: Mapping[str, str]
    folder: Path
    process: asyncio.subprocess.Process | None = None

    async def start(self, **settings: str) -> None:
        """Start it, with these settings beside its own, and return once it works.

        Raises:
            RuntimeError: it has ended instead.
        """
        name = f"{self.side}-{secrets.token_hex(4)}"
        ready, log = self.folder / f"{name}.ready", self.folder / f"{name}.log"
        env = {**os.environ, **self.env, **settings, "TURNSAGA_BENCH_READY": str(ready)}
        with log.open("wb") as output:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "benchmarks.leaks.worker",
                cwd=REPOSITORY,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        while not ready.exists():
            if self.process.returncode is not None:
                raise RuntimeError(f"a worker didn't start:\n{log.read_text(encoding='utf-8')[-2000:]}")
            await asyncio.sleep(0.05)

    async def end(self, how: signal.Signals) -> None:
        """End it, if it runs."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(how)
            await self.process.wait()


@dataclass
class LeakRig:
    """What runs, and how to reach it. ``quiet_at``: by then no delay is still to pass (loop's clock)."""

    client: Client
    sandbox: SandboxProcess
    turns: Turns
    workers: Mapping[str, WorkerProcess]
    run: str = field(default_factory=lambda: secrets.token_hex(3))
    quiet_at: float = 0.0

    def delays_until(self, seconds: float) -> None:
        """Note that a mail is held for so long from now."""
        self.quiet_at = max(self.quiet_at, asyncio.get_running_loop().time() + seconds)

    async def edit(self, record: str) -> None:
        """Be somebody else who writes the record."""
        act = {"system": "crm", "op": "edit", "identity": f"ticket/{record}", "fields": {"by": "eve"}}
        (await self.sandbox.http.post("/_act", json=act)).raise_for_status()


@asynccontextmanager
async def leak_rig(folder: Path, client: Client, sandbox: SandboxProcess) -> AsyncIterator[LeakRig]:
    """Start both workers over these vendors and a new ledger; end them again."""
    queue = f"leaks-{secrets.token_hex(3)}"
    store = SqlStore(f"sqlite:///{folder / 'leaks.db'}")
    await store.open()
    env = {
        "TEMPORAL_ADDRESS": client.service_client.config.target_host,
        "TURNSAGA_DATABASE": f"sqlite:///{folder / 'leaks.db'}",
        "TURNSAGA_PAY_URL": sandbox.vendor.pay_url,
        "TURNSAGA_CRM_URL": sandbox.vendor.crm_url,
        "TURNSAGA_SMTP_PORT": str(sandbox.vendor.smtp_port),
        "TURNSAGA_SWEEP_EVERY_S": "5",
    }
    workers = {
        side: WorkerProcess(
            side, {**env, "TURNSAGA_BENCH_SIDE": side, "TURNSAGA_TASK_QUEUE": f"{queue}-{side}"}, folder
        )
        for side in ("turnsaga", "bare")
    }
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        declared = await stack.enter_async_context(deployment_tools(sandbox.vendor))
        for worker in workers.values():
            stack.push_async_callback(worker.end, signal.SIGTERM)
        await asyncio.gather(*(worker.start() for worker in workers.values()))
        tools = mail_depends_on_the_rest(declared)
        mine = f"{queue}-turnsaga"
        turns = Turns(client, store, tools, TurnClient(client, store, task_queue=mine), mine)
        yield LeakRig(client, sandbox, turns, workers)
