"""A Temporal store that is gone: another one is adopted by command, and the open turn is settled."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from activities.deployment import deployment_tools
from tests.cli.conftest import Deployed
from tests.oracle import must_be_whole, truth_of
from tests.stack import (
    SEARCH_ATTRIBUTES,
    TEMPORAL,
    SandboxProcess,
    call,
    free_port,
    reply,
    say,
    turns_over,
)
from turnsaga.ledger import TurnState
from turnsaga.recovery import RecoveryActivities, engine_of
from turnsaga.store import EngineName, SqlStore

_ids = itertools.count(1)
THINKING = say(*["thinking "] * 400, delay_ms=50)


@pytest.fixture
async def another() -> AsyncIterator[Client]:
    """Run a second Temporal, which knows nothing of the first one's runs."""
    extra = [word for attribute in SEARCH_ATTRIBUTES for word in ("--search-attribute", attribute)]
    environment = await WorkflowEnvironment.start_local(
        ip="127.0.0.1",
        dev_server_existing_path=str(TEMPORAL),
        dev_server_extra_args=extra,
        dev_server_log_level="error",
        data_converter=pydantic_data_converter,
    )
    try:
        yield environment.client
    finally:
        await environment.shutdown()


async def test_adopted_temporal_settles_the_turns_of_the_one_that_is_gone(
    deployed: Deployed, client: Client, another: Client, sandbox: SandboxProcess, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path / 'ledger.db'}"
    invoice = f"ADOPT-{next(_ids)}"
    charge = call("charge_card", customer="cus_1", amount="10.00", currency="EUR", invoice=invoice)
    here = Deployed(deployed.turns, deployed.deployment, {**deployed.env, "TURNSAGA_DATABASE": database})
    async with (
        deployment_tools(sandbox.vendor) as tools,
        turns_over(client, tmp_path, tools, database=database) as old,
    ):
        started = await old.start(reply(charge), THINKING)
        await old.reaches(started, "committed", "charge_card")
        # Its first sweep makes the first Temporal the ledger's.
        await RecoveryActivities(old.store, client, task_queue=old.task_queue, adopt=False).sweep()
        first = await engine_of(client)
        assert await old.store.engine() == first
        same, _, refused = await here.turnsaga("adopt", "--yes")
        # Nothing of the first one is there any more, as far as the turn is concerned.
        await old.handle(started).terminate("its store is gone")

    async with (
        deployment_tools(sandbox.vendor) as tools,
        turns_over(another, tmp_path, tools, database=database) as new,
    ):
        elsewhere = {
            "TEMPORAL_ADDRESS": another.service_client.config.target_host,
            "TURNSAGA_TASK_QUEUE": new.task_queue,
        }
        there = Deployed(new, deployed.deployment, {**here.env, **elsewhere})
        second = await engine_of(another)
        stopped, _, foreign = await there.turnsaga("sweep")
        untouched = (await new.view(started)).state
        [shown] = await there.lines("adopt")
        kept = await new.store.engine()
        [adopted] = await there.lines("adopt", "--yes")
        [report] = await there.lines("sweep")
        view = await must_be_whole(new, sandbox, started)
        truth = await truth_of(sandbox)

    assert (same, refused.count("already, the one that is configured")) == (1, 1)
    assert stopped == 1
    assert f"belongs to Temporal {first.cluster!r}" in foreign
    assert "turnsaga adopt" in foreign
    assert untouched is TurnState.RUNNING
    assert (shown["ledger_cluster"], shown["configured_cluster"]) == (first.cluster, second.cluster)
    assert (shown["to_settle"], shown["adopted"], kept) == (1, False, first)
    assert (adopted["ledger_cluster"], adopted["adopted"]) == (first.cluster, True)
    assert report["recovered"] == 1
    assert view.state is TurnState.ABORTED
    assert [(each.standing, each.undone) for each in truth.effects if each.identity == invoice] == [(0, 1)]


async def test_temporal_that_can_t_be_reached_is_not_adopted(deployed: Deployed, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    store = SqlStore(url)
    await store.open()
    await store.set_engine(EngineName("another-cluster", "default"))
    away = f"127.0.0.1:{free_port()}"
    code, out, err = await deployed.turnsaga("adopt", "--yes", TURNSAGA_DATABASE=url, TEMPORAL_ADDRESS=away)
    known = await store.engine()
    told, table, _ = await deployed.turnsaga("adopt", TURNSAGA_DATABASE=url)
    await store.close()

    assert (code, out) == (1, "")
    assert "nothing was changed" in err
    assert known == EngineName("another-cluster", "default")
    assert told == 0
    assert "another-cluster" in table
    assert "say it again with --yes" in table
