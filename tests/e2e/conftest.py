"""One development stack for all tests of this folder that need one."""

import signal
from collections.abc import AsyncIterator

import pytest

from tests.dev.driver import free_ports
from tests.e2e.api import Stack, stack_at


@pytest.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with stack_at(free_ports(5), tmp_path_factory.mktemp("stack")) as running_stack:
        yield running_stack
        running_stack.driver.signal(signal.SIGTERM)
        code, _ = await running_stack.driver.end()
        assert code == 0


@pytest.fixture(autouse=True)
async def well_behaved(request: pytest.FixtureRequest) -> None:
    if "stack" in request.fixturenames:
        stack: Stack = request.getfixturevalue("stack")
        (await stack.sandbox.delete("/_control")).raise_for_status()
