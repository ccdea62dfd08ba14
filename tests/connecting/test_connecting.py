"""Temporal's environment configuration reaches the connection: to a real server, behind TLS."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from tests.connecting.certificates import Authority
from tests.connecting.gateway import NAME, Gateway, gateway_to
from tests.stack import REPOSITORY, eventually, free_port
from turnsaga.client import TurnClient
from turnsaga.connecting import temporal_config
from turnsaga.errors import EngineMisconfigured, EngineUnavailable
from turnsaga.store import SqlStore
from workers import build

OWN = Authority.other().issue("worker")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("TEMPORAL_"):
            monkeypatch.delenv(name)
    # Where a profile of whoever runs the tests would be found.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("authority")


@pytest.fixture
def target(client: Client) -> str:
    return client.service_client.config.target_host


@pytest.fixture
async def gateway(target: str, tmp_path: Path, authority: Authority) -> AsyncIterator[Gateway]:
    async with gateway_to(target, tmp_path, authority) as gateway:
        yield gateway


def tell(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"TEMPORAL_{name}", str(value))


def trusting(gateway: Gateway, authority: Authority) -> dict[str, str]:
    return {
        "ADDRESS": gateway.address,
        "TLS_SERVER_CA_CERT_DATA": authority.certificate,
        "TLS_SERVER_NAME": NAME,
    }


async def answers(client: Client) -> bool:
    return await client.service_client.check_health()


async def test_address_and_namespace_reach_the_server(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    tell(monkeypatch, {"ADDRESS": target, "NAMESPACE": "elsewhere"})
    client = await Client.connect(**temporal_config())

    with pytest.raises(RPCError, match="elsewhere"):
        await anext(client.list_workflows())
    assert client.service_client.config.target_host == target


def test_nothing_set_is_this_machine() -> None:
    assert temporal_config() == {"target_host": "127.0.0.1:7233", "namespace": "default"}


async def test_server_is_trusted_by_its_authority_and_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gateway: Gateway, authority: Authority
) -> None:
    by_data = trusting(gateway, authority)
    (tmp_path / "ca.pem").write_text(by_data.pop("TLS_SERVER_CA_CERT_DATA"))
    tell(monkeypatch, {**by_data, "TLS_SERVER_CA_CERT_PATH": tmp_path / "ca.pem"})
    by_path = await answers(await Client.connect(**temporal_config()))
    monkeypatch.delenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH")
    tell(monkeypatch, trusting(gateway, authority))
    by_data_too = await answers(await Client.connect(**temporal_config()))

    assert (by_path, by_data_too) == (True, True)
    assert gateway.clients == [None, None]


@pytest.mark.parametrize("by", ["PATH", "DATA"])
async def test_client_shows_its_certificate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, authority: Authority, by: str
) -> None:
    own = authority.issue("worker-7")
    shown = (own.certificate, own.key) if by == "DATA" else own.put(tmp_path, "worker")
    async with gateway_to(target, tmp_path, authority, asks_clients=True) as gateway:
        tell(monkeypatch, trusting(gateway, authority))
        tell(monkeypatch, {f"TLS_CLIENT_CERT_{by}": shown[0], f"TLS_CLIENT_KEY_{by}": shown[1]})
        served = await answers(await Client.connect(**temporal_config()))

    assert served
    assert gateway.clients == ["worker-7"]


async def test_api_key_is_the_bearer_of_every_request_and_goes_over_tls(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway, authority: Authority
) -> None:
    tell(monkeypatch, {**trusting(gateway, authority), "API_KEY": "key-of-ours"})
    config = temporal_config()
    await answers(await Client.connect(**config))

    assert config.get("tls")
    assert gateway.requests
    assert [request.get("authorization") for request in gateway.requests] == ["Bearer key-of-ours"] * len(
        gateway.requests
    )


async def test_profile_of_a_file_is_taken_and_the_environment_wins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gateway: Gateway, authority: Authority
) -> None:
    (tmp_path / "ca.pem").write_text(authority.certificate)
    (tmp_path / "temporal.toml").write_text(
        f"""
        [profile.default]
        address = "127.0.0.1:1"
        [profile.prod]
        address = "{gateway.address}"
        namespace = "of-the-file"
        api_key = "of-the-file"
        [profile.prod.tls]
        server_name = "{NAME}"
        server_ca_cert_path = "{tmp_path / "ca.pem"}"
        """
    )
    tell(monkeypatch, {"CONFIG_FILE": tmp_path / "temporal.toml", "PROFILE": "prod"})
    by_file = await Client.connect(**temporal_config())
    tell(monkeypatch, {"NAMESPACE": "of-the-environment"})
    by_both = await Client.connect(**temporal_config())

    assert (by_file.namespace, by_both.namespace) == ("of-the-file", "of-the-environment")
    assert gateway.said("authorization") == {"Bearer of-the-file"}


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        ("[profile.default\napi_key = 's3cret'", {}, r"TEMPORAL_CONFIG_FILE='.*temporal\.toml'.*line 1"),
        ("[profile.default]\naddress = 5", {}, r"TEMPORAL_CONFIG_FILE='.*temporal\.toml'.*expected a string"),
        ("[profile.default]", {"PROFILE": "prod"}, r"TEMPORAL_CONFIG_FILE='.*temporal\.toml'.*'prod' not"),
        (None, {}, r"TEMPORAL_CONFIG_FILE: there is no file '.*temporal\.toml'"),
    ],
    ids=["malformed", "wrong type", "no such profile", "no such file"],
)
def test_file_that_can_t_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, values: dict[str, str], said: str
) -> None:
    if text is not None:
        (tmp_path / "temporal.toml").write_text(text)
    tell(monkeypatch, {"CONFIG_FILE": tmp_path / "temporal.toml", **values})

    with pytest.raises(EngineMisconfigured, match=said) as caught:
        temporal_config()

    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"TLS_SERVER_CA_CERT_PATH": "/nowhere/ca.pem"}, "'/nowhere/ca.pem' can't be read"),
        ({"TLS_CLIENT_CERT_PATH": "/nowhere/c.pem"}, "'/nowhere/c.pem' can't be read"),
        (
            {"TLS_CLIENT_KEY_PATH": "/a", "TLS_CLIENT_KEY_DATA": "b"},
            "the environment: .*TEMPORAL_TLS_CLIENT_KEY_PATH and TEMPORAL_TLS_CLIENT_KEY_DATA",
        ),
        ({"PROFILE": "prod"}, "the environment: Profile 'prod' not found"),
    ],
)
def test_variable_that_can_t_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], said: str
) -> None:
    tell(monkeypatch, values)

    with pytest.raises(EngineMisconfigured, match=said):
        temporal_config()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"TLS_SERVER_CA_CERT_DATA": Authority.other().certificate}, "TEMPORAL_TLS_SERVER_CA_CERT_PATH"),
        ({"TLS_SERVER_NAME": "another.test"}, "TEMPORAL_TLS_SERVER_NAME"),
        ({"TLS_CLIENT_CERT_DATA": OWN.certificate, "TLS_CLIENT_KEY_DATA": "no"}, "TEMPORAL_TLS_CLIENT_KEY"),
        ({"TLS_CLIENT_CERT_DATA": "no", "TLS_CLIENT_KEY_DATA": OWN.key}, "TEMPORAL_TLS_CLIENT_CERT"),
    ],
    ids=["authority", "name", "own key", "own certificate"],
)
async def test_worker_and_web_tier_are_told_what_waiting_doesn_t_mend(
    monkeypatch: pytest.MonkeyPatch,
    gateway: Gateway,
    authority: Authority,
    changes: dict[str, str],
    said: str,
) -> None:
    tell(monkeypatch, {**trusting(gateway, authority), **changes})
    with pytest.raises(EngineMisconfigured, match=said):
        await asyncio.wait_for(build.connect(), 20)
    lazy = temporal_config()
    lazy["lazy"] = True
    client = TurnClient(await Client.connect(**lazy), SqlStore("sqlite://"))
    with pytest.raises(EngineUnavailable, match=said):
        await client.check_engine()

    assert gateway.requests == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (16, "TEMPORAL_API_KEY: the server doesn't accept who"),
        (7, "TEMPORAL_API_KEY: the server doesn't let"),
    ],
    ids=["unauthenticated", "permission denied"],
)
async def test_identity_that_isn_t_taken_is_named(
    monkeypatch: pytest.MonkeyPatch, gateway: Gateway, authority: Authority, status: int, said: str
) -> None:
    gateway.refuses = status
    tell(monkeypatch, {**trusting(gateway, authority), "API_KEY": "s3cret"})

    with pytest.raises(EngineMisconfigured, match=said) as caught:
        await asyncio.wait_for(build.connect(), 20)

    assert gateway.said("authorization") == {"Bearer s3cret"}
    assert "s3cret" not in str(caught.value)


async def test_tls_to_a_server_without_is_named(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    tell(monkeypatch, {"ADDRESS": target, "TLS": "true"})

    with pytest.raises(EngineMisconfigured, match="TEMPORAL_TLS: the server doesn't speak TLS"):
        await asyncio.wait_for(build.connect(), 20)


async def test_worker_waits_for_a_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    target: str,
    authority: Authority,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    monkeypatch.setattr(build, "_PAUSE_S", 0.05)
    tell(monkeypatch, trusting(Gateway(f"127.0.0.1:{port}"), authority))
    said: list[str] = []

    def warned() -> bool:
        said.append(capsys.readouterr().out)
        return "temporal.unavailable" in "".join(said)

    waiting = asyncio.create_task(build.connect())
    await eventually(warned, what="a warning")
    async with gateway_to(target, tmp_path, authority, port=port):
        served = await answers(await asyncio.wait_for(waiting, 20))

    assert served
    assert f"127.0.0.1:{port}" in "".join(said)


async def test_worker_process_ends_with_one_line(
    tmp_path: Path, gateway: Gateway, authority: Authority
) -> None:
    told = {**trusting(gateway, authority), "TLS_SERVER_CA_CERT_DATA": Authority.other().certificate}
    env = {
        **os.environ,
        **{f"TEMPORAL_{name}": value for name, value in told.items()},
        "TURNSAGA_DATABASE": f"sqlite:///{tmp_path / 'ledger.db'}",
    }
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "workers", "run"],
        cwd=REPOSITORY,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 2
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("workers: ")]
    assert line == (
        "workers: Temporal can't be reached as configured by TEMPORAL_TLS_SERVER_CA_CERT_PATH or …_DATA: "
        "the server's certificate isn't accepted; give the authority that issued it"
    )
    assert "Traceback" not in ended.stderr
