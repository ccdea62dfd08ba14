"""What docker-compose.yml promises: settings that exist, secrets, versions, reach and hardening."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.settings import VendorSettings
from sandbox.settings import SandboxSettings
from settings.reading import Settings, holds_secret, variable
from tests.compose.composed import FILE, compose, seconds, values, variables
from tests.stack import REPOSITORY, TEMPORAL
from web.serving import GRACE_S
from web.settings import WebSettings
from workers.settings import WorkerSettings

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
READERS: dict[str, tuple[type[Settings], ...]] = {
    "worker": (WorkerSettings, VendorSettings),
    "web": (WebSettings,),
    "sandbox": (SandboxSettings,),
}
ONE_SHOTS = {"temporal-schema", "temporal-namespace"}
DATABASES = {"ledger-db": {"worker", "web"}, "temporal-db": {"temporal", "temporal-schema"}}


def known(service: str, *, secret: bool | None = None) -> set[str]:
    """Return the variables that a service reads, all or by whether they are secrets."""
    return {
        variable(kind, name)
        for kind in READERS[service]
        for name, field in kind.model_fields.items()
        if secret is None or holds_secret(field) == secret
    }


def test_it_follows_the_compose_specification(tmp_path: Path) -> None:
    checker = [
        str(Path(sys.executable).parent / "check-jsonschema"),
        "--builtin-schema",
        "vendor.compose-spec",
    ]
    worse = tmp_path / "docker-compose.yml"
    worse.write_text(FILE.read_text().replace("depends_on:", "depends_of:"))

    codes = [
        subprocess.run([*checker, str(file)], check=False, capture_output=True).returncode
        for file in (FILE, worse)
    ]

    assert codes == [0, 1]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose on PATH")
def test_compose_itself_reads_it() -> None:
    read = subprocess.run(
        ["docker-compose", "config"], cwd=REPOSITORY, check=False, capture_output=True, text=True
    )

    assert read.returncode == 0, read.stderr
    assert "sandbox" in read.stdout


@pytest.mark.parametrize("service", READERS)
def test_each_setting_of_our_services_exists_and_is_no_secret(service: str) -> None:
    given = {name for name in SERVICES[service]["environment"] if not name.startswith("TEMPORAL_")}

    assert given - known(service, secret=False) == set()
    assert given


@pytest.mark.parametrize("service", READERS)
def test_each_secret_of_our_services_is_one_that_it_reads(service: str) -> None:
    given = {name.upper() for name in SERVICES[service].get("secrets", [])}

    assert given == known(service, secret=True)


def test_each_secret_that_is_used_is_declared_and_the_other_way_round() -> None:
    used = {name for service in SERVICES.values() for name in service.get("secrets", [])}

    assert used == set(compose()["secrets"])
    for name, secret in compose()["secrets"].items():
        assert secret == {"file": f"./secrets/{name}"}
    for service in SERVICES.values():
        for value in service.get("environment", {}).values():
            for name in re.findall(r"/run/secrets/(\w+)", str(value)):
                assert name in service["secrets"]


def test_each_variable_has_a_value_in_the_try_out_and_each_value_is_used() -> None:
    must = {name for name, kind in variables().items() if kind == ":?"}

    assert must <= set(values())
    assert set(values()) - {"COMPOSE_PROFILES"} <= set(variables())


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_is_hardened_and_pinned(service: str) -> None:
    what = SERVICES[service]

    assert what["read_only"] is True
    assert what["cap_drop"] == ["ALL"]
    assert what["security_opt"] == ["no-new-privileges:true"]
    assert not what["user"].startswith(("0", "root"))
    assert "/tmp" in what["tmpfs"]
    assert "privileged" not in what
    assert "network_mode" not in what
    if service not in READERS:
        assert re.fullmatch(r"[\w/-]+:\d+\.\d+(\.\d+)?(-\w+)?", what["image"])


def test_ports_are_published_on_loopback_alone() -> None:
    published = {name: what["ports"] for name, what in SERVICES.items() if "ports" in what}

    assert set(published) == {"web", "temporal-ui", "sandbox"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_databases_are_reached_by_those_who_work_on_them_alone() -> None:
    networks: dict[str, Any] = compose()["networks"]
    for database, users in DATABASES.items():
        near = {
            name
            for name, what in SERVICES.items()
            if name != database and set(what["networks"]) & set(SERVICES[database]["networks"])
        }
        assert near == users
        assert all(networks[network] == {"internal": True} for network in SERVICES[database]["networks"])
    for what in SERVICES.values():
        if "ports" in what:
            assert any(networks[network] != {"internal": True} for network in what["networks"])


def test_every_service_that_lasts_has_a_health_check_and_the_others_are_awaited() -> None:
    assert {name for name, what in SERVICES.items() if "healthcheck" not in what} == ONE_SHOTS
    awaited = {
        (needed, condition["condition"])
        for what in SERVICES.values()
        for needed, condition in what.get("depends_on", {}).items()
    }
    assert {name for name, condition in awaited if condition == "service_completed_successfully"} == ONE_SHOTS
    assert {name for name, _ in awaited} <= set(SERVICES)
    assert all(
        condition == ("service_completed_successfully" if name in ONE_SHOTS else "service_healthy")
        for name, condition in awaited
    )


def test_nobody_waits_for_a_service_that_a_profile_may_leave_out() -> None:
    optional = {name for name, what in SERVICES.items() if "profiles" in what}

    assert optional == {"sandbox"}
    assert all(not optional & set(what.get("depends_on", {})) for what in SERVICES.values())


def test_grace_is_longer_than_what_it_is_for() -> None:
    worker = SERVICES["worker"]

    assert seconds(worker["stop_grace_period"]) > int(worker["environment"]["TURNSAGA_DRAIN_S"])
    assert seconds(SERVICES["web"]["stop_grace_period"]) > GRACE_S


def test_versions_are_those_that_the_tests_run_with() -> None:
    said = subprocess.run([str(TEMPORAL), "--version"], check=True, capture_output=True, text=True).stdout
    server, ui = re.search(r"Server ([\d.]+), UI ([\d.]+)", said).groups()  # type: ignore[union-attr]

    assert SERVICES["temporal"]["image"] == f"temporalio/server:{server}"
    assert SERVICES["temporal-ui"]["image"] == f"temporalio/ui:{ui}"
    for service in ONE_SHOTS:
        assert SERVICES[service]["image"] == f"temporalio/admin-tools:{server}"
