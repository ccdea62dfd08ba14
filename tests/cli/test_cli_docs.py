"""docs/cli.md says what the command does."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def load_script() -> ModuleType:
    spec = spec_from_file_location("command_table", DOCS / "_tools" / "command_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()


def test_tables_are_current() -> None:
    assert script.main(["--check"]) == 0, "run make diagrams"


def test_stale_table_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    stale = tmp_path / "cli.md"
    stale.write_text(text.replace("`turnsaga doctor`", "`turnsaga physician`"), encoding="utf-8")

    assert script.main(["--check"], stale) == 1
    assert "isn't current" in capsys.readouterr().err
    assert script.main([], stale) == 0
    assert stale.read_text(encoding="utf-8") == text


def test_every_command_answers_in_json_and_takes_a_deployment() -> None:
    found = script.commands()

    assert set(found) == {
        "turnsaga doctor",
        "turnsaga sweep",
        "turnsaga adopt",
        "turnsaga verify",
        "turnsaga turns list",
        "turnsaga turns show TURN",
        "turnsaga turns abort TURN",
        "turnsaga effects list",
        "turnsaga effects show EFFECT",
        "turnsaga effects resolve EFFECT",
    }
    assert all({"--json", "--app"} <= set(names) for _, names in found.values())
