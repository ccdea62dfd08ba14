"""Our services as the file starts them, without containers: a real Postgres, a real Temporal, a whole turn.

Only addresses, ports and folders are put in place of the containers' ones.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client

from tests.compose.composed import Here, Service, compose, run, running, values
from tests.databases import Postgres
from tests.stack import REPOSITORY, TEMPORAL, call, eventually, free_port, reply, say
from turnsaga import names


@dataclass
class Deployment:
    """The three services, up and healthy."""

    services: dict[str, Service]
    web: httpx.AsyncClient
    sandbox: httpx.AsyncClient
    logs: Path


@dataclass(frozen=True)
class TryOut:
    """What the documented command makes: a folder of secrets, and a token that it printed."""

    secrets: Path
    token: str


@pytest.fixture(scope="module")
def try_out(tmp_path_factory: pytest.TempPathFactory) -> TryOut:
    folder = tmp_path_factory.mktemp("compose") / "secrets"
    made = subprocess.run(
        [sys.executable, "deploy/try_out.py", str(folder)],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return TryOut(folder, made.stdout.strip())


def socket_folder(postgres: Postgres, secrets: Path) -> str:
    """Make the ledger's role and database as its image does; return where its server listens."""
    password = (secrets / "ledger_db_password").read_text()
    postgres.run(f"CREATE ROLE turnsaga LOGIN PASSWORD '{password}'")
    postgres.run("CREATE DATABASE turnsaga OWNER turnsaga")
    return parse_qs(urlsplit(postgres.uri).query)["host"][0]


@pytest.fixture
async def deployment(
    client: Client, postgres: Postgres, try_out: TryOut, app: Path, tmp_path: Path
) -> AsyncIterator[Deployment]:
    web, sandbox, smtp = (str(free_port()) for _ in range(3))
    folder = socket_folder(postgres, try_out.secrets)
    here = Here(
        {
            "@ledger-db:5432/turnsaga": f"@/turnsaga?host={folder}",
            "temporal:7233": client.service_client.config.target_host,
            "http://sandbox:8100": f"http://127.0.0.1:{sandbox}",
            "127.0.0.1:8000": f"127.0.0.1:{web}",
            "127.0.0.1:8100": f"127.0.0.1:{sandbox}",
            "8000": web,
            "8100": sandbox,
            "8101": smtp,
            "/tmp/ready": str(tmp_path / "ready"),
            "/data/": f"{tmp_path}/",
        }
    )
    await register_namespace(here, app)
    async with AsyncExitStack() as stack:
        services = {
            name: await stack.enter_async_context(
                running(name, here, cwd=app, secrets=try_out.secrets, log=tmp_path / f"{name}.log")
            )
            for name in ("sandbox", "worker", "web")
        }
        for service in services.values():
            await eventually(service.is_healthy, within=60, what=f"the health of {service.name}")
        headers = {"Authorization": f"Bearer {try_out.token}"}
        tier = httpx.AsyncClient(base_url=f"http://127.0.0.1:{web}", headers=headers, timeout=40)
        vendors = httpx.AsyncClient(base_url=f"http://127.0.0.1:{sandbox}")
        yield Deployment(
            services,
            await stack.enter_async_context(tier),
            await stack.enter_async_context(vendors),
            tmp_path,
        )


async def register_namespace(here: Here, cwd: Path) -> None:
    """Run the service that does it, twice as a second start of the deployment would."""
    definition = compose()["services"]["temporal-namespace"]
    argv = [word.replace("/deploy/", f"{REPOSITORY}/deploy/temporal/") for word in definition["command"]]
    env = {name: here.put(value) for name, value in definition["environment"].items()}
    env["PATH"] = f"{TEMPORAL.parent}:/usr/bin:/bin"
    for _ in range(2):
        assert await run(argv, env, cwd) == 0


async def test_record_is_made_aborted_and_compensated_and_all_end_in_order(
    deployment: Deployment, client: Client, postgres: Postgres, try_out: TryOut
) -> None:
    script = [reply(call("create_record", kind="ticket", id="T-1")), say(*["word "] * 600, delay_ms=100)]
    refused = await deployment.web.get("/v1/effects", headers={"Authorization": "Bearer none"})
    started = await deployment.web.post(
        "/v1/conversations/c1/turns",
        json={"message": json.dumps({"script": script})},
        headers={"Idempotency-Key": "k1"},
    )
    assert started.status_code == 201, started.text
    turn = f"/v1/turns/{started.json()['turn']}"

    async def made() -> bool:
        effects = (await deployment.web.get(turn)).json()["effects"]
        return [effect["state"] for effect in effects] == ["committed"]

    await eventually(made, within=60, what="the record")
    aborted = await deployment.web.post(f"{turn}/abort")
    settled = await deployment.web.get(turn, params={"wait": "settled", "timeout": 30})
    truth = (await deployment.sandbox.get("/_truth")).json()["effects"]
    found = await client.service_client.workflow_service.describe_workflow_execution(
        DescribeWorkflowExecutionRequest(
            namespace="turnsaga", execution=WorkflowExecution(workflow_id=started.json()["turn"])
        )
    )
    codes = {name: await service.stop() for name, service in deployment.services.items()}

    assert (refused.status_code, aborted.status_code) == (401, 202)
    assert settled.json()["state"] == "aborted"
    assert [effect["state"] for effect in settled.json()["effects"]] == ["compensated"]
    assert [
        (effect["identity"], effect["standing"], effect["applied"], effect["undone"]) for effect in truth
    ] == [("ticket/T-1", 0, 1, 1)]
    assert found.workflow_execution_info.type.name == names.TURN_WORKFLOW
    assert codes == {"sandbox": 0, "worker": 0, "web": 0}
    _must_keep_secrets(deployment.logs, try_out.secrets)
    # It was this ledger, and its own user made it.
    owner = _value(postgres, "SELECT tableowner FROM pg_tables WHERE tablename = 'effects'")
    assert owner == "turnsaga"


async def test_production_starts_by_the_same_file(
    client: Client, postgres: Postgres, try_out: TryOut, app: Path, tmp_path: Path
) -> None:
    """With a model by name; the try-out's env is development's for the scripted model alone."""
    port = str(free_port())
    database = postgres.new_database()
    here = Here(
        {
            (try_out.secrets / "turnsaga_database").read_text(): database,
            "temporal:7233": client.service_client.config.target_host,
            "127.0.0.1:8000": f"127.0.0.1:{port}",
            "8000": port,
        }
    )
    given = {**values(), "TURNSAGA_ENV": "production", "TURNSAGA_MODEL": "openai:gpt-x"}
    log = tmp_path / "web.log"
    async with running("web", here, cwd=app, secrets=try_out.secrets, log=log, given=given) as web:
        await eventually(web.is_healthy, within=60, what="the health of web")
        code = await web.stop()

    assert code == 0
    assert all(json.loads(line)["event"] for line in log.read_text().splitlines())


def _value(postgres: Postgres, question: str) -> object:
    url = postgres.uri.replace("/postgres?", "/turnsaga?")
    with psycopg.connect(url) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return row[0]


def _must_keep_secrets(logs: Path, secrets: Path) -> None:
    said = "".join(log.read_text() for log in logs.glob("*.log"))
    assert "worker.started" in said
    assert "web.started" in said
    kept = ("ledger_db_password", "turnsaga_pay_key", "turnsaga_crm_token", "turnsaga_hook_token")
    for name in (*kept, "turnsaga_jwt_keys"):
        assert (secrets / name).read_text() not in said, name
