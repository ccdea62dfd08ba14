"""Turns in this process: our workflow on the real Temporal, our tools on the sandbox."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.deployment import deployment_tools
from tests.stack import SandboxProcess, Turns, turns_over


@pytest.fixture(scope="session")
async def shared_turns(
    client: Client, sandbox: SandboxProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Turns]:
    """One worker with the deployment's tools for all tests of this folder."""
    folder: Path = tmp_path_factory.mktemp("ledger")
    async with (
        deployment_tools(sandbox.vendor) as tools,
        turns_over(client, folder, tools) as turns,
    ):
        yield turns


@pytest.fixture
async def turns(shared_turns: Turns, sandbox: SandboxProcess) -> AsyncIterator[Turns]:
    """Turns over vendors that behave, until the test says otherwise."""
    await sandbox.clear()
    yield shared_turns
    await sandbox.clear()


@pytest.fixture
async def own_turns(
    client: Client, sandbox: SandboxProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Turns]:
    """Turns over a ledger of their own, which a sweep looks at as soon as they have begun."""
    monkeypatch.setattr("turnsaga.recovery._GRACE", timedelta(0))
    await sandbox.clear()
    async with (
        deployment_tools(sandbox.vendor) as tools,
        turns_over(client, tmp_path, tools) as turns,
    ):
        yield turns
    await sandbox.clear()
