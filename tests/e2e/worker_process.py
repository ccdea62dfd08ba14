"""A worker that is a process of its own, so that it can be killed."""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client

from activities.settings import VendorSettings
from tests.stack import REPOSITORY

_ids = itertools.count(1)


@dataclass
class WorkerProcess:
    """A real ``python -m workers run``, or what ``argv`` names, that is started again after each kill."""

    env: Mapping[str, str]
    folder: Path
    argv: Sequence[str] = ("-m", "workers", "run")
    process: asyncio.subprocess.Process | None = None

    async def start(self, **env: str) -> None:
        """Start it, and return once it polls; ``env`` is for this start alone."""
        ready = self.folder / f"ready-{next(_ids)}"
        with (self.folder / "worker.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self.argv,
                cwd=REPOSITORY,
                env={**self.env, **env, "TURNSAGA_READY_FILE": str(ready)},
                stdout=log,
                stderr=log,
            )
        while not ready.exists():
            assert self.process.returncode is None, (self.folder / "worker.log").read_text()[-2000:]
            await asyncio.sleep(0.05)

    async def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return await self.process.wait()


def worker_env(client: Client, vendor: VendorSettings, *, database: str, task_queue: str) -> dict[str, str]:
    """Return what a worker process is told, so that it works on this ledger and with these vendors."""
    return {
        **os.environ,
        "TEMPORAL_ADDRESS": client.service_client.config.target_host,
        "TURNSAGA_DATABASE": database,
        "TURNSAGA_TASK_QUEUE": task_queue,
        "TURNSAGA_PAY_URL": vendor.pay_url,
        "TURNSAGA_CRM_URL": vendor.crm_url,
        "TURNSAGA_SMTP_PORT": str(vendor.smtp_port),
        "TURNSAGA_HOOK_URL": vendor.hook_url,
        "TURNSAGA_DRAIN_S": "10",
        "TURNSAGA_SWEEP_EVERY_S": "2",
    }
