"""A deployment for the command: our workflow and tools on the real Temporal, a ledger, a sweeper."""

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.checks import vendor_checks
from activities.deployment import deployment_tools
from tests.cli.command import run
from tests.stack import SandboxProcess, Turns, eventually, turns_over
from turnsaga.deployment import Deployment
from turnsaga.recovery import ensure_sweeper, sweeper_schedule


@dataclass(frozen=True)
class Deployed:
    """A deployment that works; ``env`` is what the command needs to work on it."""

    turns: Turns
    deployment: Deployment
    env: Mapping[str, str]

    async def turnsaga(self, *arguments: str, **env: str) -> "tuple[int, str, str]":
        """Run the command on it; return the exit code, stdout and stderr."""
        return await run(*arguments, env={**self.env, **env})

    async def lines(self, *arguments: str, code: int = 0, **env: str) -> list[dict[str, Any]]:
        """Run the command on it with ``--json``, and return its answer."""
        ended, out, err = await self.turnsaga(*arguments, "--json", **env)
        assert ended == code, (ended, out, err)
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(scope="session")
async def deployed(
    client: Client, sandbox: SandboxProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployed]:
    folder: Path = tmp_path_factory.mktemp("deployed")
    async with deployment_tools(sandbox.vendor) as tools, turns_over(client, folder, tools) as turns:
        await ensure_sweeper(client, task_queue=turns.task_queue, every=timedelta(minutes=1))

        async def swept() -> bool:
            return await turns.store.engine() is not None

        await eventually(swept, what="the first sweep")
        address = client.service_client.config.target_host
        yield Deployed(
            turns,
            Deployment(
                open_tools=lambda: deployment_tools(sandbox.vendor),
                database=turns.store.where,
                task_queue=turns.task_queue,
                env="development",
                checks=vendor_checks(sandbox.vendor),
            ),
            {
                **os.environ,
                "TURNSAGA_APP": "workers.build:app",
                "TURNSAGA_ENV": "development",
                "TURNSAGA_DATABASE": turns.store.where,
                "TURNSAGA_TASK_QUEUE": turns.task_queue,
                "TURNSAGA_PAY_URL": sandbox.vendor.pay_url,
                "TURNSAGA_CRM_URL": sandbox.vendor.crm_url,
                "TURNSAGA_SMTP_PORT": str(sandbox.vendor.smtp_port),
                "TURNSAGA_HOOK_URL": sandbox.vendor.hook_url,
                "TEMPORAL_ADDRESS": address,
            },
        )
        await client.get_schedule_handle(sweeper_schedule(turns.task_queue)).delete()


@pytest.fixture
def here(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    """The deployment, with this process's Temporal settings those of it."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", deployed.env["TEMPORAL_ADDRESS"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    return deployed
