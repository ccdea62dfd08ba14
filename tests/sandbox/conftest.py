from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandbox.server import serve
from sandbox.settings import SandboxSettings
from tests.sandbox.driver import Driver, official_client


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Driver]:
    """A sandbox that listens on free ports."""
    settings = SandboxSettings(port=0, smtp_port=0, database=tmp_path / "sandbox.db")
    async with (
        serve(settings) as serving,
        httpx.AsyncClient(base_url=serving.url, timeout=30) as http,
        official_client(serving.url) as client,
    ):
        yield Driver(serving.url, serving.smtp_port, http, client)
