"""The sandbox as a process of its own: how it starts, ends, dies and goes on."""

import asyncio
import json
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from sandbox.errors import CannotStart
from sandbox.server import serve
from sandbox.settings import SandboxSettings
from tests.sandbox.driver import Driver, eventually, official_client

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def _process(**settings: object) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {f"SANDBOX_{name.upper()}": str(value) for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sandbox",
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def _driver(process: asyncio.subprocess.Process) -> AsyncIterator[Driver]:
    assert process.stdout is not None
    ready = json.loads(await process.stdout.readline())
    smtp_port = int(ready["smtp"].rpartition(":")[2])
    async with (
        httpx.AsyncClient(base_url=ready["http"], timeout=30) as http,
        official_client(ready["http"]) as client,
    ):
        assert (await http.get("/healthz")).status_code == 200
        yield Driver(ready["http"], smtp_port, http, client)


async def test_truth_survives_sigkill(tmp_path: Path) -> None:
    settings = {"port": 0, "smtp_port": 0, "database": tmp_path / "sandbox.db"}
    async with _process(**settings) as process, _driver(process) as sandbox:
        await sandbox.charge("INV-1", key="k1")
        await sandbox.mail("INV-1", key="m1")
        await sandbox.crm("POST", "/sobjects/order/o1", body={"fields": {"a": 1}}, key="c1")
        await sandbox.post("ops", "hello", key="h1")
        await sandbox.turn("pay", apply_after_ms=60_000)
        landing = asyncio.create_task(sandbox.charge("INV-2", key="k2"))
        await eventually(lambda: _has_arrived(sandbox, "k2"))
        before = await sandbox.truth()
        process.send_signal(signal.SIGKILL)
        await process.wait()
        with pytest.raises(httpx.TransportError):
            await landing

    async with _process(**settings) as process, _driver(process) as sandbox:
        after = await sandbox.truth()
        replay = await sandbox.charge("INV-1", key="k1")
        record = await sandbox.crm("GET", "/sobjects/order/o1")
        posted = (await sandbox.http.get("/hook/messages")).json()["messages"]

    assert after == before
    assert [effect["standing"] for effect in after["effects"]] == [1, 1, 1, 1]
    assert [call["answered"] for call in after["calls"]] == [True, True, True, True, False]
    assert replay.headers["idempotent-replayed"] == "true"
    assert record.json()["fields"] == {"a": 1}
    assert [(message["identity"], message["key"]) for message in posted] == [("ops/hello", "h1")]


async def _has_arrived(sandbox: Driver, key: str) -> bool:
    return key in [call["key"] for call in (await sandbox.truth())["calls"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_it_cleanly_with_calls_under_way(tmp_path: Path, number: signal.Signals) -> None:
    settings = {"port": 0, "smtp_port": 0, "database": tmp_path / "sandbox.db"}
    async with _process(**settings) as process, _driver(process) as sandbox:
        await sandbox.turn("pay", latency_ms=60_000)
        await sandbox.turn("mail", latency_ms=60_000)
        await sandbox.turn("hook", apply_after_ms=60_000)
        waiting = asyncio.gather(sandbox.charge(), sandbox.mail(), sandbox.post(), return_exceptions=True)
        await eventually(lambda: _has_arrived(sandbox, "m1"))
        await eventually(lambda: _has_arrived(sandbox, "k1"))
        await eventually(lambda: _has_arrived(sandbox, "h1"))
        process.send_signal(number)
        async with asyncio.timeout(8):
            _out, complaints = await process.communicate()
        lost = await waiting

    assert process.returncode == 0
    assert complaints == b""
    assert all(isinstance(error, Exception) for error in lost)


@pytest.mark.parametrize("setting", ["port", "smtp_port"])
async def test_taken_port_is_one_clear_line(tmp_path: Path, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {"port": 0, "smtp_port": 0, "database": tmp_path / "sandbox.db", setting: port}
        async with _process(**settings) as process:
            out, complaint = await process.communicate()

    assert (process.returncode, out) == (2, b"")
    assert complaint.count(b"\n") == 1
    assert f"SANDBOX_{setting.upper()}".encode() in complaint
    assert str(port).encode() in complaint


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("port", "http"),
        ("smtp_port", 70_000),
        ("database", "/nowhere/at/all.db"),
        ("host", "no.such.host.invalid"),
    ],
)
async def test_bad_setting_is_one_clear_line(tmp_path: Path, setting: str, value: object) -> None:
    settings = {"port": 0, "smtp_port": 0, "database": tmp_path / "sandbox.db", setting: value}
    async with _process(**settings) as process:
        out, complaint = await process.communicate()

    assert (process.returncode, out) == (2, b"")
    assert complaint.count(b"\n") == 1
    assert complaint.startswith(b"sandbox: SANDBOX_")
    assert str(value).encode() in complaint


async def test_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE precious (x)")
    other.close()

    with pytest.raises(CannotStart, match="SANDBOX_DATABASE"):
        async with serve(SandboxSettings(port=0, smtp_port=0, database=path)):
            pass


async def test_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "sandbox.db"
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version=9999")
    newer.close()

    with pytest.raises(CannotStart, match="SANDBOX_DATABASE"):
        async with serve(SandboxSettings(port=0, smtp_port=0, database=path)):
            pass


async def test_database_from_before_there_was_a_hook_goes_on(tmp_path: Path) -> None:
    settings = SandboxSettings(port=0, smtp_port=0, database=tmp_path / "sandbox.db")
    async with serve(settings) as serving, httpx.AsyncClient(base_url=serving.url) as http:
        token = {"Authorization": "Bearer token"}
        await http.post("/crm/sobjects/order/o1", json={"fields": {}}, headers=token)
        before = (await http.get("/_truth")).json()
    with sqlite3.connect(settings.database) as older:
        older.execute("DROP TABLE posts")
        older.execute("PRAGMA user_version=1")
    older.close()

    async with serve(settings) as serving, httpx.AsyncClient(base_url=serving.url) as http:
        after = (await http.get("/_truth")).json()
        posted = await http.post("/hook/ops", json={"text": "hello"})
        listed = (await http.get("/hook/messages")).json()["messages"]

    assert after == before
    assert posted.text == "ok"
    assert [message["identity"] for message in listed] == ["ops/hello"]


async def test_customers_are_seeded_once(tmp_path: Path) -> None:
    settings = SandboxSettings(port=0, smtp_port=0, database=tmp_path / "sandbox.db")
    headers = {"Authorization": "Bearer token"}
    async with serve(settings) as serving, httpx.AsyncClient(base_url=serving.url, headers=headers) as http:
        await http.delete("/crm/sobjects/customer/cus_1")

    async with serve(settings) as serving, httpx.AsyncClient(base_url=serving.url, headers=headers) as http:
        answers = [await http.get(f"/crm/sobjects/customer/cus_{number}") for number in (1, 2)]

    assert [answer.status_code for answer in answers] == [404, 200]
