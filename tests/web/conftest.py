"""A web tier over a real ledger for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.web.served import Api, api_over


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """Run the app over a new ledger and a Temporal that answers, until the test says otherwise."""
    async with api_over(tmp_path) as api:
        yield api
