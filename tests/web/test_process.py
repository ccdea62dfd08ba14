"""``python -m web`` as a process: what it needs, what it refuses, and how it ends."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.web.issuer import AUDIENCE, ISSUER, bearer, key_set, token
from tests.web.served import ADA, identity, settings_of, stream
from web.serving import StartRefused, serve

REPOSITORY = Path(__file__).parent.parent.parent
TOKENS = {
    "TURNSAGA_JWT_ISSUER": ISSUER,
    "TURNSAGA_JWT_AUDIENCE": AUDIENCE,
    "TURNSAGA_JWT_KEYS": json.dumps(key_set("r", "e")),
}


@dataclass
class Web:
    """One ``python -m web``."""

    process: asyncio.subprocess.Process
    url: str

    async def ready(self) -> None:
        async with asyncio.timeout(30), httpx.AsyncClient(base_url=self.url) as http:
            while self.process.returncode is None:
                try:
                    if (await http.get("/healthz")).status_code == 200:
                        return
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
        raise AssertionError((await self.process.communicate())[1].decode())

    async def ended(self) -> tuple[int, str]:
        """Return the exit code and what was written to stderr."""
        async with asyncio.timeout(30):
            _, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, err.decode()


@asynccontextmanager
async def web(folder: Path, **values: str) -> AsyncIterator[Web]:
    """Start the web tier with these settings and no others, and a Temporal that is away."""
    port = values.setdefault("TURNSAGA_WEB_PORT", str(free_port()))
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("TURNSAGA_", "TEMPORAL_"))
    }
    env |= {
        "TURNSAGA_DATABASE": f"sqlite:///{folder / 'ledger.db'}",
        "TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}",
        **values,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "web",
        cwd=REPOSITORY,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Web(process, f"http://127.0.0.1:{port}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


async def test_it_serves_while_temporal_is_away_and_ends_in_order_on_sigterm(tmp_path: Path) -> None:
    async with web(tmp_path) as tier:
        await tier.ready()
        async with httpx.AsyncClient(base_url=tier.url, headers=identity(ADA)) as http:
            ready = await http.get("/readyz")
            start = await http.post(
                "/v1/conversations/c/turns", json={"message": "a"}, headers={"Idempotency-Key": "k"}
            )
            turn = start.json()["turn"]
            stop = await http.post(f"/v1/turns/{turn}/abort")
            async with stream(http, turn) as events:
                kinds = [event.kind for event in [await events.next(), await events.next()] if event]
                asked = time.monotonic()
                tier.process.send_signal(signal.SIGTERM)
                end = await events.next()
        code, err = await tier.ended()
        took = time.monotonic() - asked

    assert (ready.status_code, ready.json()["ledger"]) == (503, "ok")
    assert ready.json()["temporal"] == "doesn't answer"
    assert (start.status_code, start.json()["type"]) == (503, "engine_unavailable")
    assert (stop.status_code, stop.json()["state"]) == (202, "aborting")
    assert kinds == ["turn_started", "turn_aborting"]
    assert end is None
    assert code == 0
    assert took < 3
    assert "Traceback" not in err
    assert "web.started" in err


async def test_ledger_is_found_again_by_the_next_process(tmp_path: Path) -> None:
    turns = []
    for _ in range(2):
        async with web(tmp_path) as tier:
            await tier.ready()
            async with httpx.AsyncClient(base_url=tier.url, headers=identity(ADA)) as http:
                answer = await http.post(
                    "/v1/conversations/c/turns", json={"message": "a"}, headers={"Idempotency-Key": "k"}
                )
            turns.append(answer.json()["turn"])
            tier.process.send_signal(signal.SIGINT)
            assert (await tier.ended())[0] == 0

    assert turns[0] == turns[1]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"TURNSAGA_ENV": "production"},
            ("TURNSAGA_ENV", "TURNSAGA_JWT_ISSUER", "TURNSAGA_JWT_KEYS", "TURNSAGA_JWT_JWKS_URL"),
        ),
        (
            {"TURNSAGA_WEB_HOST": "0.0.0.0"},
            ("TURNSAGA_WEB_HOST", "0.0.0.0", "loopback", "TURNSAGA_JWT_ISSUER"),
        ),
        ({"TURNSAGA_WEB_HOST": "::"}, ("TURNSAGA_WEB_HOST", "loopback")),
        ({"TURNSAGA_ALLOWED_HOSTS": "a.example"}, ("TURNSAGA_ALLOWED_HOSTS",)),
        ({"TURNSAGA_JWT_ISSUER": "https://i"}, ("TURNSAGA_JWT_AUDIENCE",)),
        ({"TURNSAGA_JWT_ISSUER": ""}, ("TURNSAGA_JWT_ISSUER",)),
        ({"TURNSAGA_JWT_LEEWAY_S": "-1"}, ("TURNSAGA_JWT_LEEWAY_S",)),
        ({**TOKENS, "TURNSAGA_JWT_ALGORITHMS": "RS256,"}, ("TURNSAGA_JWT_ALGORITHMS",)),
        ({**TOKENS, "TURNSAGA_JWT_ALGORITHMS": "RS256,none"}, ("TURNSAGA_JWT_ALGORITHMS", "'none'")),
        ({**TOKENS, "TURNSAGA_JWT_JWKS_URL": "https://i/keys"}, ("TURNSAGA_JWT_KEYS", "both")),
        ({**TOKENS, "TURNSAGA_JWT_KEYS": "/nowhere"}, ("TURNSAGA_JWT_KEYS", "No such file")),
        ({"TURNSAGA_WEB_PORT": "eighty"}, ("TURNSAGA_WEB_PORT",)),
        ({"TURNSAGA_WEB_PORT": "70000"}, ("TURNSAGA_WEB_PORT",)),
        ({"TURNSAGA_ENV": "staging"}, ("TURNSAGA_ENV", "development", "production")),
        ({"TURNSAGA_DATABASE": "no url"}, ("database",)),
        ({"TURNSAGA_DATABASE": "mysql://h/d"}, ("mysql",)),
        ({"TEMPORAL_CONFIG_FILE": "/nonexistent/../dev/null", "TEMPORAL_PROFILE": "none"}, ("Temporal",)),
    ],
    # By names alone: the keys are made anew by each process that collects these tests.
    ids=",".join,
)
async def test_settings_that_can_not_be_served_are_one_line_and_exit_code_two(
    tmp_path: Path, values: dict[str, str], said: tuple[str, ...]
) -> None:
    async with web(tmp_path, **values) as tier:
        code, err = await tier.ended()

    assert code == 2, err
    assert err.count("\n") == 1
    assert err.startswith("web: ")
    assert [word for word in said if word not in err] == []


async def test_taken_port_is_one_line_and_exit_code_two(tmp_path: Path, taken_port: int) -> None:
    async with web(tmp_path, TURNSAGA_WEB_PORT=str(taken_port)) as tier:
        code, err = await tier.ended()

    assert (code, err.count("\n")) == (2, 1)
    assert str(taken_port) in err
    assert not (tmp_path / "ledger.db").exists()


async def test_file_that_is_no_ledger_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"x" * 5000)
    async with web(tmp_path) as tier:
        code, err = await tier.ended()

    assert code == 2
    assert "ledger.db" in err.splitlines()[-1]
    assert "Traceback" not in err


async def test_ledger_that_does_not_open_in_time_is_refused(tmp_path: Path) -> None:
    settings = settings_of(database=f"sqlite:///{tmp_path / 'nowhere' / 'l.db'}", web_port=free_port())

    with pytest.raises(StartRefused, match=r"nowhere/l\.db.*within 0 s.*unable to open"):
        await serve(settings, patience_s=0)


async def test_it_ends_in_order_while_it_waits_for_its_ledger(tmp_path: Path) -> None:
    async with web(tmp_path, TURNSAGA_DATABASE=f"sqlite:///{tmp_path / 'nowhere' / 'l.db'}") as tier:
        assert tier.process.stderr is not None
        async with asyncio.timeout(20):
            first = await tier.process.stderr.readline()
        tier.process.send_signal(signal.SIGTERM)
        code, err = await tier.ended()

    assert b"ledger.unavailable" in first
    assert code == 0, err
    assert "Traceback" not in err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_every_loopback_host_is_served(tmp_path: Path, host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    port = free_port()
    async with web(tmp_path, TURNSAGA_WEB_HOST=host, TURNSAGA_WEB_PORT=str(port)) as tier:
        tier.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        await tier.ready()
        tier.process.send_signal(signal.SIGTERM)
        code, _ = await tier.ended()

    assert code == 0


async def test_production_serves_every_address_to_bearers_and_keeps_tokens_out_of_its_log(
    tmp_path: Path,
) -> None:
    good, expired = token(), token(exp=1)
    async with web(tmp_path, **TOKENS, TURNSAGA_ENV="production", TURNSAGA_WEB_HOST="0.0.0.0") as tier:
        await tier.ready()
        async with httpx.AsyncClient(base_url=tier.url) as http:
            taken = await http.get("/v1/effects", headers={**bearer(good), "Host": "api.example"})
            late = await http.get("/v1/effects", headers=bearer(expired))
            header = await http.get("/v1/effects", headers=identity(ADA))
        tier.process.send_signal(signal.SIGTERM)
        code, err = await tier.ended()

    assert (taken.status_code, late.status_code, header.status_code, code) == (200, 401, 401, 0)
    assert err.count('"web.request"') >= 3
    assert [part for part in (*good.split("."), *expired.split(".")) if part in err] == []
    assert "Traceback" not in err


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
