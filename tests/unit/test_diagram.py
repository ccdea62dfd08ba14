import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from turnsaga.ledger import TRANSITIONS, TURN_TRANSITIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPT = DOCS / "_tools" / "state_diagram.py"


def load_script() -> ModuleType:
    spec = spec_from_file_location("state_diagram", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


state_diagram = load_script()


@pytest.fixture
def document(tmp_path: Path) -> Path:
    copy = tmp_path / "ledger.md"
    copy.write_bytes((DOCS / "ledger.md").read_bytes())
    return copy


def block(text: str, name: str) -> str:
    after = text.partition(f"<!-- diagram:{name} -->")[2]
    return after.partition("<!-- /diagram -->")[0]


def test_the_diagrams_of_the_ledger_page_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_every_transition_is_drawn() -> None:
    text = (DOCS / "ledger.md").read_text(encoding="utf-8")

    for (before, event), after in TRANSITIONS.items():
        arrow = f"    {before or '[*]'} --> {after}: "
        (line,) = [line for line in block(text, "effects").splitlines() if line.startswith(arrow)]
        assert event.value in line.removeprefix(arrow).split(", ")
    for (turn_before, turn_event), turn_after in TURN_TRANSITIONS.items():
        assert f"    {turn_before} --> {turn_after}: {turn_event}\n" in block(text, "turns")


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        pytest.param("gate_opened", "gate_shut", id="another event"),
        pytest.param("    prepared --> released: dropped\n", "", id="an arrow less"),
        pytest.param("aborted --> [*]", "running --> [*]", id="another end"),
    ],
)
def test_a_diagram_that_is_not_current_is_noticed_and_redrawn(
    document: Path, said: str, instead: str
) -> None:
    drawn = document.read_text(encoding="utf-8")
    changed = drawn.replace(said, instead)
    document.write_text(changed, encoding="utf-8")

    assert state_diagram.main(["--check"], document) == 1
    assert document.read_text(encoding="utf-8") == changed != drawn
    assert state_diagram.main([], document) == 0
    assert document.read_text(encoding="utf-8") == drawn


def test_what_stands_around_a_diagram_is_left_as_it_is(document: Path) -> None:
    prose = "Before \\1 \\g<0>.\n\n" + document.read_text(encoding="utf-8") + "\nAfter.\n"
    document.write_text(prose, encoding="utf-8")

    assert state_diagram.main([], document) == 0
    assert document.read_text(encoding="utf-8") == prose


@pytest.mark.parametrize("name", ["effects", "turns"])
def test_a_page_without_the_place_of_a_diagram_is_refused(document: Path, name: str) -> None:
    text = document.read_text(encoding="utf-8").replace(f"<!-- diagram:{name} -->", "")
    document.write_text(text, encoding="utf-8")

    with pytest.raises(ValueError, match=f"diagram:{name}"):
        state_diagram.main(["--check"], document)
