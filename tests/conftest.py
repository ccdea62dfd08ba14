"""What all tests share: one real Temporal, one sandbox, one Postgres."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests.databases import Postgres, running_postgres
from tests.stack import SEARCH_ATTRIBUTES, TEMPORAL, SandboxProcess, sandbox_process


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """Run the real Temporal server, as the CLI's development server."""
    extra = [word for attribute in SEARCH_ATTRIBUTES for word in ("--search-attribute", attribute)]
    for limit in ("transferProcessorMaxPollRPS", "timerProcessorMaxPollRPS"):
        extra += ["--dynamic-config-value", f"history.{limit}=2000"]
    environment = await WorkflowEnvironment.start_local(
        ip="127.0.0.1",
        dev_server_existing_path=str(TEMPORAL),
        dev_server_extra_args=extra,
        dev_server_log_level="error",
        data_converter=pydantic_data_converter,
    )
    try:
        yield environment
    finally:
        await environment.shutdown()


@pytest.fixture(scope="session")
def client(temporal: WorkflowEnvironment) -> Client:
    """Return a client of the real Temporal server."""
    return temporal.client


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """Run a real Postgres server."""
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
async def sandbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SandboxProcess]:
    """Run the sandbox; its knobs are for the test that sets them to clear."""
    folder: Path = tmp_path_factory.mktemp("sandbox")
    async with sandbox_process(folder) as process:
        yield process
