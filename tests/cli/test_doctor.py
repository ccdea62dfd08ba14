"""``turnsaga doctor`` on real parts: all well, and each of them wrong in turn."""

import asyncio
import re
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import Connection, text
from temporalio.client import Client
from temporalio.worker import Worker

from activities.checks import vendor_checks
from tests.cli.conftest import Deployed
from tests.databases import Postgres
from tests.stack import REPOSITORY, SandboxProcess, eventually, free_port
from tests.store.ledgers import Clock, Ledger
from turnsaga.cli._doctor import Checked, _ledger, examine
from turnsaga.deployment import Deployment, Status
from turnsaga.plugin import TurnSagaPlugin
from turnsaga.recovery import RecoveryActivities, ensure_sweeper, sweeper_schedule
from turnsaga.store import EngineName, SqlStore
from turnsaga.testing import FakeSystem
from turnsaga.tools import Tools

TEMPORAL_CHECKS = {
    "temporal.namespace",
    "temporal.search_attributes",
    "temporal.workers",
    "temporal.sweeper",
    "clock.temporal",
    "ledger.engine",
}
LEDGER_CHECKS = {"ledger.schema", "clock.database", "clock.writers", "tools.needed", "tools.workers"}


def by_name(checked: Sequence[Checked]) -> dict[str, Checked]:
    found = {each.check: each for each in checked}
    assert len(found) == len(checked), "names are unique"
    return found


def failing(checked: Sequence[Checked]) -> set[str]:
    return {each.check for each in checked if each.status is Status.FAIL}


def unasked(checked: Sequence[Checked]) -> set[str]:
    return {each.check for each in checked if each.what.startswith("not checked: ")}


def contents(url: str) -> list[str]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        return list(connection.iterdump())


@contextmanager
def silent() -> Iterator[int]:
    """Listen on a port, take connections, and never answer."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        # The kernel takes them for us, as for a process that is stuck.
        listening.listen()
        yield int(listening.getsockname()[1])


def undocumented(checks: set[str]) -> set[str]:
    """Return those that the table in docs/cli.md has no row for."""
    text = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8").partition("## What `doctor` asks")[2]
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    told = {name.replace("…", "*") for row in rows for name in re.findall(r"`(.+?)`", row)}
    assert len(told) > 8
    return {check for check in checks if not any(fnmatch(check, pattern) for pattern in told)}


async def new_ledger(url: str) -> SqlStore:
    store = SqlStore(url)
    await store.open()
    return store


async def on_ledger(store: SqlStore, statement: str) -> None:
    def run(connection: Connection) -> None:
        connection.execute(text(statement))

    await store._database.write(run)


async def test_all_is_well_on_a_deployment_that_works(deployed: Deployed) -> None:
    before = contents(deployed.deployment.database)
    found = await deployed.lines("doctor")
    after = contents(deployed.deployment.database)
    warned = {line["check"]: line for line in found if line["status"] != "ok"}

    assert set(warned) == {"tools.send_invoice_email", "tools.post_message"}, (
        "neither an SMTP relay nor a webhook knows keys or can be asked"
    )
    assert all(set(line) == {"check", "status", "what", "remedy"} for line in found)
    names = {line["check"] for line in found}
    assert names > TEMPORAL_CHECKS | LEDGER_CHECKS
    assert {f"vendors.{vendor}" for vendor in ("pay", "crm", "mail", "hook")} < names
    assert {"settings.identity", "packages.parts"} < names
    assert after == before
    assert undocumented(names) == set()


async def test_people_get_a_table_and_the_exit_code_of_the_worst(deployed: Deployed) -> None:
    well, out, _ = await deployed.turnsaga("doctor")
    ill, told, _ = await deployed.turnsaga("doctor", TURNSAGA_PAY_KEY="not-a-key")

    assert (well, ill) == (0, 1)
    assert "temporal.connection" in out
    assert "set TURNSAGA_PAY_KEY to a secret key" in told
    assert "not-a-key" not in told


async def test_temporal_away(here: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    checked = await examine(here.deployment)

    assert failing(checked) == {"temporal.connection"}
    assert unasked(checked) == TEMPORAL_CHECKS
    found = by_name(checked)["temporal.connection"]
    assert address in found.what
    assert "TEMPORAL_ADDRESS" in found.remedy


async def test_temporal_that_takes_connections_and_never_answers(
    here: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    with silent() as port:
        monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{port}")
        began = loop.time()
        checked = await examine(here.deployment)
        took = loop.time() - began

    assert failing(checked) == {"temporal.connection"}
    assert took < 9


async def test_broken_temporal_settings(here: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_PROFILE", "nobody-has-it")
    checked = await examine(here.deployment)

    assert "temporal.connection" in failing(checked)
    assert "nobody-has-it" in by_name(checked)["temporal.connection"].what


async def test_wrong_namespace(here: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "not-made")
    checked = await examine(replace(here.deployment, env="production"))
    found = by_name(checked)

    assert failing(checked) == {"temporal.namespace", "ledger.engine"}
    assert "there is no namespace 'not-made'" in found["temporal.namespace"].what
    assert "temporal operator namespace create --namespace not-made" in found["temporal.namespace"].remedy
    assert {"temporal.sweeper", "temporal.workers"} <= unasked(checked)


async def test_queue_that_nobody_polls_and_nobody_sweeps(here: Deployed) -> None:
    checked = await examine(replace(here.deployment, task_queue="deserted"))
    found = by_name(checked)

    assert failing(checked) == {"temporal.sweeper"}
    assert "there is no schedule 'deserted-sweep'" in found["temporal.sweeper"].what
    assert found["temporal.workers"].status is Status.WARN
    assert "for workflows or activities" in found["temporal.workers"].what


async def test_paused_sweeper(here: Deployed, client: Client) -> None:
    handle = client.get_schedule_handle(sweeper_schedule(here.deployment.task_queue))
    await handle.pause(note="by the night shift")
    try:
        checked = await examine(here.deployment)
    finally:
        await handle.unpause()

    assert failing(checked) == {"temporal.sweeper"}
    found = by_name(checked)["temporal.sweeper"]
    assert "is paused (by the night shift)" in found.what
    assert f"--schedule-id {handle.id} --unpause" in found.remedy


async def test_sweeps_that_fail_at_a_foreign_temporal(here: Deployed, client: Client, tmp_path: Path) -> None:
    """A production worker whose ledger belongs to another Temporal: its sweeps fail, and nobody looks."""
    url = f"sqlite:///{tmp_path / 'foreign.db'}"
    store = await new_ledger(url)
    await store.set_engine(EngineName("another-cluster", "default"))
    queue = "foreign-sweeps"
    tools = Tools([FakeSystem().tool("note_down")])
    recovery = RecoveryActivities(store, client, task_queue=queue, adopt=False)
    deployment = replace(here.deployment, database=url, task_queue=queue, env="production", checks=())
    async with Worker(
        client, task_queue=queue, activities=recovery.all(), plugins=[TurnSagaPlugin(tools, store)]
    ):
        await ensure_sweeper(client, task_queue=queue, every=timedelta(minutes=1))

        async def told() -> dict[str, Checked] | None:
            found = by_name(await examine(deployment))
            return found if found["temporal.sweeper"].status is Status.FAIL else None

        found = await eventually(told, within=30, what="a failed sweep")
    await client.get_schedule_handle(sweeper_schedule(queue)).delete()
    await store.close()

    assert "the last sweep ended as failed" in found["temporal.sweeper"].what
    assert found["ledger.engine"].status is Status.FAIL
    assert "belongs to Temporal another-cluster/default" in found["ledger.engine"].what


async def test_development_adopts_another_temporal_and_is_only_warned(here: Deployed, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'foreign.db'}"
    store = await new_ledger(url)
    await store.set_engine(EngineName("another-cluster", "default"))
    checked = await examine(replace(here.deployment, database=url))
    await store.close()

    assert failing(checked) == set()
    assert by_name(checked)["ledger.engine"].status is Status.WARN


async def test_database_away(here: Deployed) -> None:
    url = f"postgresql://someone:hunter2@127.0.0.1:{free_port()}/ledger"
    checked = await examine(replace(here.deployment, database=url))
    found = by_name(checked)["ledger.connection"]

    assert failing(checked) == {"ledger.connection"}
    assert unasked(checked) == LEDGER_CHECKS | {"ledger.engine"}
    assert "refused" in found.what
    assert "hunter2" not in "".join(each.model_dump_json() for each in checked)


async def test_database_that_takes_connections_and_never_answers(here: Deployed) -> None:
    loop = asyncio.get_running_loop()
    with silent() as port:
        began = loop.time()
        checked = await examine(replace(here.deployment, database=f"postgresql://a@127.0.0.1:{port}/x"))
        took = loop.time() - began

    assert failing(checked) == {"ledger.connection"}
    assert took < 9


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host/ledger", "'mysql' isn't supported"),
        ("nonsense", "not a database URL"),
        ("sqlite:///{tmp_path}/missing.db", "there is no such file"),
        ("sqlite:///{tmp_path}", "there is no such file"),
    ],
)
async def test_ledger_that_can_t_be_one(here: Deployed, tmp_path: Path, url: str, says: str) -> None:
    checked = await examine(replace(here.deployment, database=url.format(tmp_path=tmp_path)))

    assert failing(checked) == {"ledger.connection"}
    assert says in by_name(checked)["ledger.connection"].what


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        url = server.new_database()
    opened = await new_ledger(url)
    yield opened
    await opened.close()


def over(here: Deployed, store: SqlStore) -> Deployment:
    """Return the deployment over another ledger."""
    url = store._database._url.render_as_string(hide_password=False)
    return replace(here.deployment, database=url)


async def test_ledger_of_a_newer_version(here: Deployed, store: SqlStore) -> None:
    await on_ledger(store, "UPDATE alembic_version SET version_num = '9999'")
    checked = await examine(over(here, store))

    assert failing(checked) == {"ledger.schema"}
    assert "at revision 9999, which this version doesn't know" in by_name(checked)["ledger.schema"].what
    assert unasked(checked) == {"clock.writers", "ledger.engine", "tools.needed", "tools.workers"}


async def test_ledger_of_an_older_version(
    here: Deployed, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ledger, "HEAD", "newest")
    checked = await examine(over(here, store))

    assert failing(checked) == {"ledger.schema"}
    assert "behind this version's newest" in by_name(checked)["ledger.schema"].what


async def test_database_without_a_ledger(here: Deployed, postgres: Postgres) -> None:
    checked = await examine(replace(here.deployment, database=postgres.new_database()))

    assert failing(checked) == set()
    assert by_name(checked)["ledger.schema"].what == "the database is empty"


async def test_open_effects_of_a_tool_that_the_deployment_no_longer_has(
    here: Deployed, store: SqlStore
) -> None:
    ledger = Ledger(store, Clock())
    settled, running = await ledger.turn(), await ledger.turn()
    await ledger.commit(settled, tool="settled_tool")
    await store.complete_turn(settled)
    await ledger.commit(running, tool="old_tool")
    await ledger.commit(await ledger.turn(), tool="charge_card")
    checked = await examine(over(here, store))

    assert failing(checked) == {"tools.needed"}
    assert by_name(checked)["tools.needed"].what.endswith("no longer has: 1 of 'old_tool'")


def shifted(seconds: float) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) + timedelta(seconds=seconds)


async def test_this_machine_s_clock_is_behind(here: Deployed, postgres: Postgres) -> None:
    fresh = await new_ledger(postgres.new_database())
    await fresh.write_tool_cards(Tools([FakeSystem().tool("note_down")]).cards())
    checked = await examine(over(here, fresh), clock=shifted(-600))
    await fresh.close()

    assert failing(checked) == {"clock.database", "clock.temporal", "clock.writers"}
    assert "ahead of this machine's" in by_name(checked)["clock.database"].what


async def test_this_machine_s_clock_is_ahead(here: Deployed, postgres: Postgres) -> None:
    fresh = await new_ledger(postgres.new_database())
    checked = await examine(over(here, fresh), clock=shifted(3))
    await fresh.close()
    found = by_name(checked)["clock.database"]

    assert found.status is Status.WARN
    assert "behind this machine's" in found.what
    assert "NTP" in found.remedy


async def test_a_worker_s_clock_is_ahead(here: Deployed, store: SqlStore) -> None:
    ahead = Clock()
    ahead.now = datetime.now(UTC) + timedelta(seconds=90)
    worker = SqlStore(over(here, store).database, clock=ahead)
    await Ledger(worker, ahead).turn()
    await worker.close()
    checked = await examine(over(here, store))

    assert failing(checked) == {"clock.writers"}


async def test_wrong_vendors(here: Deployed, sandbox: SandboxProcess) -> None:
    nowhere = free_port()
    wrong = sandbox.vendor.model_copy(
        update={
            "pay_key": SecretStr("hunter2"),
            "crm_url": f"http://127.0.0.1:{nowhere}/crm",
            "smtp_port": nowhere,
            "hook_url": f"http://127.0.0.1:{nowhere}/hook",
        }
    )
    moved = sandbox.vendor.model_copy(
        update={
            "pay_url": f"http://127.0.0.1:{nowhere}/pay",
            "crm_token": SecretStr("two\nlines"),
            "hook_token": SecretStr("two\nlines"),
        }
    )
    first = await examine(replace(here.deployment, checks=vendor_checks(wrong)))
    second = await examine(replace(here.deployment, checks=vendor_checks(moved)))

    assert failing(first) == {"vendors.pay", "vendors.crm", "vendors.mail", "vendors.hook"}
    assert by_name(first)["vendors.pay"].what == "PAY refuses the key"
    assert "can't be reached" in by_name(first)["vendors.crm"].what
    assert "HOOK can't be reached" in by_name(first)["vendors.hook"].what
    assert "hunter2" not in "".join(each.model_dump_json() for each in first)
    assert failing(second) == {"vendors.pay", "vendors.crm", "vendors.hook"}
    assert "PAY can't be reached" in by_name(second)["vendors.pay"].what
    assert by_name(second)["vendors.crm"].what == "the CRM's token can't be sent in a header"
    assert by_name(second)["vendors.hook"].what == "HOOK's token can't be sent in a header"


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (503, ("PAY answers 503", "the CRM answers 503", "HOOK answers 503")),
        (403, ("PAY's key may not search charges", "the CRM refuses the token", "HOOK refuses the token")),
    ],
)
async def test_vendor_that_answers_otherwise(
    here: Deployed, sandbox: SandboxProcess, status: int, says: tuple[str, ...]
) -> None:
    for system in ("pay", "crm", "hook"):
        await sandbox.knobs(system, fail={"status": status, "times": 1}, only={"op": "lookup"})
    checked = await examine(here.deployment)
    await sandbox.clear()

    assert failing(checked) == {"vendors.pay", "vendors.crm", "vendors.hook"}
    assert tuple(by_name(checked)[f"vendors.{vendor}"].what for vendor in ("pay", "crm", "hook")) == says


async def test_webhook_that_hides_what_may_be_posted_to(here: Deployed, sandbox: SandboxProcess) -> None:
    await sandbox.knobs("hook", fail={"status": 404, "times": 1}, only={"op": "lookup"})
    checked = await examine(here.deployment)
    await sandbox.clear()

    assert failing(checked) == set()
    assert by_name(checked)["vendors.hook"].status is Status.WARN
    assert "404" in by_name(checked)["vendors.hook"].what


async def test_nothing_is_posted_to_learn_whether_the_webhook_answers(
    here: Deployed, sandbox: SandboxProcess
) -> None:
    def of_hook(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if row["system"] == "hook"]

    before = await sandbox.truth()
    await examine(here.deployment)
    after = await sandbox.truth()

    new = of_hook(after["calls"])[len(of_hook(before["calls"])) :]
    assert [(call["method"], call["op"], call["applied_at"]) for call in new] == [("GET", "lookup", None)]
    assert of_hook(after["effects"]) == of_hook(before["effects"])


async def test_tools_that_can_t_be_opened(here: Deployed) -> None:
    @asynccontextmanager
    async def contradictory() -> AsyncIterator[Tools]:
        yield Tools([FakeSystem().tool("note_down", undo_says=None)])

    @asynccontextmanager
    async def torn() -> AsyncIterator[Tools]:
        import not_installed_anywhere  # type: ignore[import-not-found]  # noqa: F401, PLC0415

        yield Tools([])

    first = await examine(replace(here.deployment, open_tools=contradictory))
    second = await examine(replace(here.deployment, open_tools=torn))

    assert failing(first) == failing(second) == {"tools.declared"}
    assert "has no sentence for people (tool 'note_down')" in by_name(first)["tools.declared"].what
    assert "ModuleNotFoundError" in by_name(second)["tools.declared"].what
    assert unasked(first) == {"tools.needed", "tools.workers"}


async def test_settings_that_aren_t_meant_for_production(deployed: Deployed) -> None:
    found = {
        line["check"]: line for line in await deployed.lines("doctor", TURNSAGA_ENV="production", code=1)
    }

    assert {name: line["status"] for name, line in found.items() if name.startswith("settings.")} == {
        "settings.env": "ok",
        "settings.database": "warn",
        "settings.model": "fail",
        "settings.identity": "fail",
        "settings.vendors": "fail",
    }
    assert "TURNSAGA_JWT_ISSUER" in found["settings.identity"]["what"]
    assert found["settings.vendors"]["remedy"] == (
        "set TURNSAGA_PAY_KEY, TURNSAGA_CRM_TOKEN, TURNSAGA_HOOK_TOKEN"
    )


async def test_production_with_one_credential_of_the_sandbox_is_told_which(deployed: Deployed) -> None:
    own = {"TURNSAGA_ENV": "production", "TURNSAGA_PAY_KEY": "sk_live_1", "TURNSAGA_CRM_TOKEN": "own"}

    async def vendors(**more: str) -> dict[str, Any]:
        lines = await deployed.lines("doctor", **own, **more, code=1)
        return next(line for line in lines if line["check"] == "settings.vendors")

    left, none = await vendors(), await vendors(TURNSAGA_HOOK_TOKEN="")

    assert (left["status"], left["remedy"]) == ("fail", "set TURNSAGA_HOOK_TOKEN")
    assert none["status"] == "ok", "a webhook may take no token"
