"""No line at INFO or above holds what users wrote, what tools were asked, or who anybody is.

Whole turns are driven with marked words in every place that is somebody's, through processes that log as
in production, well and badly; then the processes' whole output is searched for the mark.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer, ThreadingTCPServer
from typing import Any

import httpx
import psycopg
import pytest
from temporalio.client import Client

from tests.databases import Postgres
from tests.logs.captured import captured
from tests.stack import (
    REPOSITORY,
    SandboxProcess,
    Turns,
    call,
    eventually,
    free_port,
    reply,
    say,
    turns_over,
)
from tests.web.issuer import AUDIENCE, ISSUER, bearer, key_set, token
from turnsaga.client import TurnClient
from turnsaga.models import Principal
from turnsaga.recovery import sweeper_schedule
from turnsaga.store import SqlStore
from turnsaga.testing import FakeSystem, Note
from turnsaga.tools import Call, Once, Prepared, ReadTool, Tools

MARK = "zqmark"
WHO = Principal(tenant=f"{MARK}tenant", user=f"{MARK}user")
ALLOWED = {"charge_card": "immediate", "send_invoice_email": "immediate!", "post_message": "immediate!"}
THINKING = say(*[f"{MARK}thinking "] * 400, delay_ms=50)
_numbers = itertools.count(1)
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("TURNSAGA_", "TEMPORAL_"))
}


@dataclass(frozen=True)
class Part:
    """A process, and the file that its stderr goes to."""

    process: asyncio.subprocess.Process
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return what was logged; a line that isn't JSON fails the test."""
        return [json.loads(line) for line in self.text.splitlines()]

    def must_be_discreet(self) -> None:
        """Fail on any line that holds the mark, and on one of another shape than all others."""
        assert [line for line in self.text.splitlines() if MARK in line] == []
        assert all({"event", "level", "logger", "timestamp"} <= set(line) for line in self.lines)
        assert {line["level"] for line in self.lines} <= {"info", "warning", "error", "critical"}


@asynccontextmanager
async def part(module: str, *words: str, log: Path, env: Mapping[str, str]) -> AsyncIterator[Part]:
    """Run ``python -m module`` until the block ends, and then let it end by itself."""
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *words, cwd=REPOSITORY, env={**ENVIRONMENT, **env}, stderr=stderr
        )
    try:
        yield Part(process, log)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            await process.wait()


@asynccontextmanager
async def worker(client: Client, folder: Path, **env: str) -> AsyncIterator[tuple[Part, Turns]]:
    """Run a worker in production over a new ledger, and give turns on it."""
    queue = f"discreet-{next(_numbers)}"
    url = f"sqlite:///{folder / 'ledger.db'}"
    store = SqlStore(url)
    ready = folder / "ready"
    told = {
        "TURNSAGA_ENV": "production",
        "TURNSAGA_DATABASE": url,
        "TURNSAGA_TASK_QUEUE": queue,
        "TURNSAGA_READY_FILE": str(ready),
        "TURNSAGA_DRAIN_S": "5",
        # Each workflow task replays, so that what a replay says is heard, too.
        "TURNSAGA_MAX_CACHED_WORKFLOWS": "0",
        "TEMPORAL_ADDRESS": client.service_client.config.target_host,
        **env,
    }
    async with part("workers", "run", log=folder / "worker.log", env=told) as running:

        def polls() -> bool:
            assert running.process.returncode is None, running.text
            return ready.exists()

        await eventually(polls, within=60, what="the worker")
        yield (
            running,
            Turns(client, store, Tools([]), TurnClient(client, store, task_queue=queue), queue, WHO),
        )
    await client.get_schedule_handle(sweeper_schedule(queue)).delete()
    await store.close()


def charge(**changes: str) -> dict[str, Any]:
    given = {
        "customer": f"cus_{MARK}",
        "amount": "10.00",
        "currency": "EUR",
        "invoice": f"{MARK}-{next(_numbers)}",
    }
    return call("charge_card", **{**given, **changes})


def record() -> dict[str, Any]:
    return call("create_record", kind="note", id=f"{MARK}{next(_numbers)}", fields={MARK: f"{MARK}value"})


def mail() -> dict[str, Any]:
    to = f"{MARK}@example.com"
    return call("send_invoice_email", to=to, invoice=f"{MARK}-{next(_numbers)}", amount="1 EUR", note=MARK)


def message() -> dict[str, Any]:
    return call("post_message", channel=MARK, text=f"{MARK} {next(_numbers)}")


MALFORMED = (
    {"tool": "charge_card", "raw_args": f'{{"customer": "{MARK}'},
    {"tool": "charge_card", "raw_args": f'"{MARK}"'},
    {"tool": "charge_card", "args": {"customer": MARK, "amount": MARK, "currency": MARK, "invoice": MARK}},
    {"tool": f"{MARK}_tool", "args": {MARK: MARK}},
    {"tool": "post_message", "args": {"channel": f"{MARK}/{MARK}", "text": f"{MARK}\x00"}},
    {"tool": "update_record", "args": {"kind": "note", "id": f"{MARK}absent", "fields": {MARK: MARK}}},
)


async def settled_by_abort(
    turns: Turns, *replies: Mapping[str, Any], policies: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Run these replies, stop the turn, and return its effects' states by tool."""
    started = await turns.start(*replies, THINKING, policies=policies)

    async def thinks() -> bool:
        page = await turns.store.event_page(WHO, started.ref.turn, after=0)
        return any(f"{MARK}thinking" in str(event.data) for event in page.events)

    await eventually(thinks, within=60, what="the turn's last reply")
    await turns.turns.abort(WHO, started.ref.turn, reason=f"{MARK}reason")
    view = await turns.settled(started, within=60)
    return {effect.tool: effect.state.value for effect in view.effects}


async def test_worker_over_vendors_that_work_and_fail(
    client: Client, sandbox: SandboxProcess, tmp_path: Path
) -> None:
    vendors = {
        "TURNSAGA_PAY_URL": sandbox.vendor.pay_url,
        "TURNSAGA_CRM_URL": sandbox.vendor.crm_url,
        "TURNSAGA_SMTP_PORT": str(sandbox.vendor.smtp_port),
        "TURNSAGA_HOOK_URL": sandbox.vendor.hook_url,
    }
    find = call("find_customer", query=MARK)
    async with worker(client, tmp_path, **vendors) as (running, turns):
        well = await settled_by_abort(
            turns, reply(charge(), record(), mail(), message(), find), policies=ALLOWED
        )
        refused = await turns.start(reply(*MALFORMED), say(MARK), policies=ALLOWED)
        await turns.settled(refused)
        failing = await turns.start({"error": {"status": 500, "times": 2}, **say(MARK)})
        await turns.settled(failing)
        await sandbox.knobs("pay", drop_response=1)
        await sandbox.knobs("crm", fail={"status": 500, "times": 2, "applied": True})
        await sandbox.knobs("mail", fail={"status": 554, "times": 1})
        await sandbox.knobs("hook", drop_response=1)
        lost = await settled_by_abort(turns, reply(charge(), record(), mail(), message()), policies=ALLOWED)
        await sandbox.clear()
        nonsense = await turns.turns.start(WHO, "c", message=f'{{"script": "{MARK}"}}', start_key="n")
        await turns.settled(nonsense)
    events = {line["event"] for line in running.lines}

    running.must_be_discreet()
    assert well == {
        "charge_card": "compensated",
        "create_record": "compensated",
        "send_invoice_email": "standing",
        "post_message": "standing",
    }
    assert lost["charge_card"] == lost["create_record"] == "compensated"
    assert lost["post_message"] == "unknown"
    assert {"worker.started", "commit.recorded", "undo.recorded"} <= events
    assert any(event.startswith("Completing activity as failed") for event in events)
    assert running.process.returncode == 0


class Echo(BaseHTTPRequestHandler):
    """A vendor that answers with everything that it was told, under the next of these statuses."""

    statuses: "itertools.cycle[int]"

    def do_GET(self) -> None:
        self._echo()

    def do_POST(self) -> None:
        self._echo()

    def do_DELETE(self) -> None:
        self._echo()

    def _echo(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("utf-8", "replace")
        said = f"{MARK} {self.path} {body} {dict(self.headers)}"
        error = {"type": "invalid_request_error", "code": "resource_missing", "message": said, "param": said}
        answer = json.dumps({"error": error, "errors": [said], "message": said}).encode()
        status = next(self.statuses)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("X-Echo", MARK)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as it is called
        """Keep quiet."""


class Refusing(StreamRequestHandler):
    """A mail relay that refuses everybody, and says whom."""

    def handle(self) -> None:
        self.wfile.write(f"554 5.7.1 {MARK} isn't welcome here\r\n".encode())


@contextmanager
def serving(server: TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield int(server.socket.getsockname()[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def echo(*statuses: int) -> Iterator[str]:
    handler = type("Echoing", (Echo,), {"statuses": itertools.cycle(statuses)})
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("statuses", [(400, 404), (402, 409), (500, 200), (503, 401)], ids=str)
async def test_worker_over_vendors_that_echo(
    client: Client, tmp_path: Path, statuses: tuple[int, ...]
) -> None:
    with echo(*statuses) as url, serving(ThreadingTCPServer(("127.0.0.1", 0), Refusing)) as smtp:
        vendors = {"TURNSAGA_PAY_URL": url, "TURNSAGA_CRM_URL": url, "TURNSAGA_SMTP_PORT": str(smtp)}
        vendors["TURNSAGA_HOOK_URL"] = url
        async with worker(client, tmp_path, **vendors) as (running, turns):
            started = await turns.start(
                reply(charge(), record(), mail(), message(), call("find_customer", query=MARK)),
                THINKING,
                policies=ALLOWED,
            )
            await turns.reaches(started, "failed", "send_invoice_email", within=60)
            await turns.turns.abort(WHO, started.ref.turn, reason=MARK)

    running.must_be_discreet()
    assert "commit.recorded" in running.text


async def test_web_tier(client: Client, tmp_path: Path) -> None:
    port = free_port()
    env = {
        "TURNSAGA_ENV": "production",
        "TURNSAGA_DATABASE": f"sqlite:///{tmp_path / 'ledger.db'}",
        "TURNSAGA_WEB_PORT": str(port),
        "TURNSAGA_MODEL": "anthropic:large",
        "TURNSAGA_JWT_ISSUER": ISSUER,
        "TURNSAGA_JWT_AUDIENCE": AUDIENCE,
        "TURNSAGA_JWT_KEYS": json.dumps(key_set("r")),
        "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",
    }
    ours = bearer(token(sub=WHO.user, tenant=WHO.tenant))
    async with (
        part("web", log=tmp_path / "web.log", env=env) as tier,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http,
    ):

        async def up() -> bool:
            assert tier.process.returncode is None, tier.text
            try:
                return (await http.get("/healthz")).is_success
            except httpx.TransportError:
                return False

        await eventually(up, within=60, what="the web tier")
        start = "/v1/conversations/c1/turns"
        statuses = [
            # Temporal is away: recorded, and told as such.
            (
                await http.post(start, json={"message": MARK}, headers={**ours, "Idempotency-Key": MARK})
            ).status_code,
            (
                await http.post(start, json={"message": MARK}, headers={**ours, "Idempotency-Key": "2"})
            ).status_code,
            (await http.post(start, json={"message": 7, MARK: MARK}, headers=ours)).status_code,
            (await http.post(start, content=f'{{"{MARK}', headers=ours)).status_code,
            (await http.get("/v1/effects", headers=ours, params={"state": MARK})).status_code,
            (await http.get("/v1/effects", headers=bearer(f"{MARK}.{MARK}.{MARK}"))).status_code,
            (await http.get("/v1/effects", headers={"X-Turnsaga-User": f"{MARK}/{MARK}"})).status_code,
        ]
        active = (await http.get("/v1/conversations/c1/effects", headers=ours)).status_code
        found = SqlStore(env["TURNSAGA_DATABASE"])
        turn = await found.active_turn(WHO, "c1")
        await found.close()
        stopped = await http.post(f"/v1/turns/{turn}/abort", json={"reason": MARK}, headers=ours)
    events = [line["event"] for line in tier.lines]

    tier.must_be_discreet()
    assert statuses[0] == 503
    assert set(statuses[1:]) <= {200, 401, 409, 400, 422}
    assert (active, stopped.status_code) == (200, 202)
    assert {"web.started", "web.request", "abort.not_signalled"} <= set(events)
    del client


async def test_tools_whose_errors_quote_their_arguments(
    client: Client, tmp_path: Path, postgres: Postgres
) -> None:
    """In-process: tools that raise what they were given, in each phase; and a database that does."""
    failing = {"commit": 1, "lookup": 1, "undo": 2}

    def quotes(phase: str, call: Call) -> Exception | None:
        if failing.get(phase, 0) <= 0:
            return None
        failing[phase] -= 1
        return RuntimeError(f"{phase} of {MARK} for {call.tenant}/{call.user}")

    prepares = [ValueError(f"can't prepare {MARK}")]

    async def prepare(arguments: Any, call: Call) -> Prepared:
        del call
        if prepares:
            raise prepares.pop()
        return Prepared(arguments.model_dump())

    async def read(arguments: Any, call: Call) -> str:
        raise KeyError(f"{arguments!r} for {call.user}")

    keyed, once = FakeSystem(after=quotes), FakeSystem("other", before=quotes)

    def touched(arguments: Note) -> list[str]:
        return [arguments.text]

    quick = replace(keyed.tool("note_down").limits, landing_window=timedelta(0))
    tools = Tools(
        [
            replace(keyed.tool("note_down"), prepare=prepare, limits=quick),
            replace(once.tool("note_once"), repeat=Once(), limits=quick),
            replace(keyed.tool("note_refused"), resources=touched),
            ReadTool(
                name="look",
                description="Look.",
                arguments=keyed.tool("note_down").arguments,
                read=read,
                says="look for {identity}",
            ),
        ]
    )
    url = postgres.new_database()
    with captured("production") as logs:
        async with turns_over(client, tmp_path, tools, database=url) as turns:
            turns.who = WHO
            asked = [
                call(name, identity=f"{MARK}{name}", text=MARK) for name in ("note_down", "note_once", "look")
            ]
            states = await settled_by_abort(turns, reply(*asked))
            # The error of a statement that Postgres refuses holds its parameters.
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("ALTER TABLE resources ADD CHECK (resource = '')")
            last = await turns.start(
                reply(call("note_refused", identity=f"{MARK}refused", text=MARK)), THINKING
            )

            def refused() -> bool:
                return any("IntegrityError" in line.get("exception", "") for line in logs.lines)

            await eventually(refused, within=60, what="a statement that the database refuses")
            await turns.turns.abort(WHO, last.ref.turn)
            await turns.settled(last, within=60)

    assert [line for line in logs.text.splitlines() if MARK in line] == []
    assert set(states.values()) <= {"compensated", "failed"}
    assert failing["commit"] == 0
    assert not prepares
    assert "(PrepareFailed)" in logs.text
    assert "commit.no_answer" in logs.text
