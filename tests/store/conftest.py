"""A ledger on each kind of database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.databases import Postgres
from tests.store.ledgers import Clock, Ledger
from turnsaga.store import (
    SqlStore,
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give each test a new database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Ledger]:
    clock = Clock()
    store = SqlStore(url, clock=clock)
    await store.open()
    yield Ledger(store, clock)
    await store.close()
