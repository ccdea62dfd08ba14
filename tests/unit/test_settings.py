"""Where settings come from, which source wins, and what is said of a wrong one."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from activities.settings import VendorSettings
from sandbox.settings import SandboxSettings
from settings import reading
from settings.reading import Settings, SettingsRefused, exit_code, read_settings
from settings.shared import LedgerSettings, ledger
from turnsaga.connecting import temporal_config
from web.settings import WebSettings
from workers.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
KINDS: tuple[type[Settings], ...] = (WorkerSettings, VendorSettings, WebSettings, SandboxSettings)
URL = "postgresql://ada:s3cret@db/ledger"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("TURNSAGA_", "SANDBOX_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(reading, "SECRETS", tmp_path / "nowhere")


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    monkeypatch.setenv("TURNSAGA_SECRETS_DIR", str(folder))
    return folder


def test_each_setting_may_come_from_a_file(secrets: Path) -> None:
    (secrets / "turnsaga_database").write_text(f"{URL}\n")
    (secrets / "TURNSAGA_PAY_KEY").write_text("sk_live_1")
    (secrets / "turnsaga_drain_s").write_text("7")
    (secrets / "turnsaga_jwt_algorithms").write_text("RS256, ES256")

    assert read_settings(WorkerSettings).database.get_secret_value() == URL
    assert read_settings(WorkerSettings).drain_s == 7
    assert read_settings(VendorSettings).pay_key.get_secret_value() == "sk_live_1"
    assert read_settings(WebSettings).jwt_algorithms == ("RS256", "ES256")
    assert read_settings(WebSettings).names_tokens


def test_environment_wins_over_a_file(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / "turnsaga_drain_s").write_text("7")
    monkeypatch.setenv("TURNSAGA_DRAIN_S", "8")

    assert read_settings(WorkerSettings).drain_s == 8


def test_usual_folder_is_taken_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECRETS", tmp_path)
    (tmp_path / "turnsaga_crm_token").write_text("t")

    assert read_settings(VendorSettings).crm_token.get_secret_value() == "t"


def test_files_mounted_as_kubernetes_does_are_read(secrets: Path) -> None:
    """It links each file to one in a folder that it swaps as a whole."""
    (secrets / "..2026").mkdir()
    (secrets / "..2026" / "turnsaga_drain_s").write_text("7")
    (secrets / "..data").symlink_to("..2026")
    (secrets / "turnsaga_drain_s").symlink_to("..data/turnsaga_drain_s")

    assert read_settings(WorkerSettings).drain_s == 7


def test_named_folder_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TURNSAGA_SECRETS_DIR", str(tmp_path / "missing"))

    with pytest.raises(SettingsRefused, match=r"TURNSAGA_SECRETS_DIR: .*missing' isn't a folder"):
        read_settings(WorkerSettings)


def test_file_that_can_not_be_used_is_refused_and_not_skipped(secrets: Path) -> None:
    """Its default would take the place of a secret."""
    file = secrets / "turnsaga_pay_key"
    file.mkdir()
    with pytest.raises(SettingsRefused, match=r"TURNSAGA_PAY_KEY: .*found a directory"):
        read_settings(VendorSettings)
    file.rmdir()
    file.write_bytes(b"\xff")
    with pytest.raises(SettingsRefused, match=r"TURNSAGA_PAY_KEY: .*isn't UTF-8"):
        read_settings(VendorSettings)
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(SettingsRefused, match=r"TURNSAGA_PAY_KEY: .*outside"):
        read_settings(VendorSettings)


def test_unreadable_file_is_named(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = secrets / "turnsaga_pay_key"
    file.write_text("sk_live_1")

    def denied(path: Path, encoding: str) -> str:
        assert encoding
        raise PermissionError(13, "Permission denied", str(path))

    # Root, as which tests may run, is never denied anything.
    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(SettingsRefused, match=rf"TURNSAGA_PAY_KEY: .*{file}.*Permission denied"):
        read_settings(VendorSettings)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_secret_is_in_what_settings_show(kind: type[Settings]) -> None:
    given: dict[str, Any] = {
        name: "s3cret" for name, field in kind.model_fields.items() if reading.holds_secret(field)
    }
    if "database" in given:
        given["database"] = URL
    settings = kind(**given)

    assert "s3cret" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"


def test_what_is_a_secret_is_held_as_one() -> None:
    secret = {
        reading.variable(kind, name)
        for kind in KINDS
        for name, field in kind.model_fields.items()
        if reading.holds_secret(field)
    }

    assert secret == {
        "TURNSAGA_CRM_TOKEN",
        "TURNSAGA_DATABASE",
        "TURNSAGA_HOOK_TOKEN",
        "TURNSAGA_JWT_KEYS",
        "TURNSAGA_PAY_KEY",
    }


def test_what_several_parts_read_is_declared_once() -> None:
    for kind in (WorkerSettings, WebSettings):
        own = set(kind.__annotations__)
        assert own & set(LedgerSettings.model_fields) == set()
        assert issubclass(kind, LedgerSettings)
    apart = [set(kind.__annotations__) for kind in (WorkerSettings, VendorSettings, WebSettings)]
    assert sum(map(len, apart)) == len(set[str]().union(*apart))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no url s3cret", "not a database URL; give sqlite:"),
        ("postgresql://u:s3cret@h:port/x", "not a database URL"),
        ("postgresql:///ledger?password=s3cret", "password in the query"),
        ("mysql://u:s3cret@h/x", "'mysql' isn't supported"),
    ],
)
def test_wrong_database_is_named_without_its_password(
    given: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSAGA_DATABASE", given)

    with pytest.raises(SettingsRefused) as refused:
        ledger(read_settings(WorkerSettings))

    line = str(refused.value)
    assert line.startswith("TURNSAGA_DATABASE: ")
    assert said in line
    assert "s3cret" not in line


def test_ledger_is_where_the_settings_say(tmp_path: Path) -> None:
    store = ledger(WorkerSettings(database=SecretStr(f"sqlite:///{tmp_path}/l.db")))

    assert store.where == f"sqlite:///{tmp_path}/l.db"


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (("workers", "run"), {"TURNSAGA_DRAIN_S": "soon"}),
        (("workers", "run"), {"TURNSAGA_SMTP_PORT": "0"}),
        (("workers", "run"), {"TURNSAGA_DATABASE": "postgresql://u:s3cret@h:port/x"}),
        (("web",), {"TURNSAGA_WEB_PORT": "eighty"}),
        (("web",), {"TURNSAGA_DATABASE": "mysql://u:s3cret@h/x"}),
        (("sandbox",), {"SANDBOX_PORT": "eighty"}),
        (("sandbox",), {"SANDBOX_SECRETS_DIR": "/nowhere/at/all"}),
    ],
    ids=str,
)
def test_each_process_refuses_a_wrong_setting_in_the_same_way(
    part: tuple[str, ...], wrong: dict[str, str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", *part],
        check=False,
        cwd=ROOT,
        env={**os.environ, **wrong},
        capture_output=True,
        text=True,
    )

    (variable,) = wrong
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"{part[0]}: {variable}")
    assert ended.stderr.count("\n") == 1
    assert "s3cret" not in ended.stderr


def test_temporal_key_comes_from_a_mounted_file_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```toml\n(.*?)```", document, re.DOTALL)
    for name in os.environ:
        if name.startswith("TEMPORAL_"):
            monkeypatch.delenv(name)
    (tmp_path / "temporal.toml").write_text(block.replace("…", "s3cret"))
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))

    found = temporal_config()

    assert found.get("api_key") == "s3cret"
    assert found.get("target_host") == "eu-1.aws.api.temporal.io:7233"
    assert found.get("namespace") == "agents.a1b2c"


def test_value_that_is_no_secret_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_PORT", "eighty")

    with pytest.raises(SettingsRefused, match=r"^SANDBOX_PORT='eighty': Input should be a valid integer"):
        read_settings(SandboxSettings)


def test_refusal_of_many_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        raise LookupError("no ledger\nDETAIL: none")

    assert exit_code("web", run, LookupError) == 2
    assert capsys.readouterr().err == "web: no ledger DETAIL: none\n"


def test_errors_that_are_no_refusal_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code("web", lambda: 1 // 0)
