"""What the README and the docs say is so."""

import re
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import turnsaga
from turnsaga import names
from turnsaga.ledger import State
from turnsaga.outcomes import Answer
from turnsaga.settle import OnUnknown
from turnsaga.tools import Call, Committed, EffectTool, JsonObject, Keyed, Tools, Undone

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


class BookSeat(BaseModel):
    flight: str
    seat: str


def test_tool_of_the_readme_fits_in_twenty_lines_and_is_taken() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    [block] = [each for each in blocks if "EffectTool(" in each]
    space: dict[str, Any] = {
        "BookSeat": BookSeat, "Call": Call, "Committed": Committed, "EffectTool": EffectTool,
        "JsonObject": JsonObject,
        "Keyed": Keyed, "Undone": Undone, "timedelta": timedelta,
    }  # fmt: skip
    exec(block, space)  # the README's own code

    assert len(block.strip().splitlines()) <= 20
    assert "book_seat" in Tools([space["book_seat"]])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (document.parent / target).exists(), f"{document.name} → {target}"


def test_every_state_is_explained() -> None:
    text = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")

    assert all(f"| `{state}` |" in text for state in State)


def test_names_on_the_wire_are_documented() -> None:
    text = (ROOT / "docs" / "temporal.md").read_text(encoding="utf-8")

    for name in (
        names.TASK_QUEUE, names.TURN_WORKFLOW, names.ABORT, names.LEDGER, names.RECOVER_TURN, names.SWEEP,
        names.TURN_STATUS, names.CONVERSATION_ID, names.NEEDS_ATTENTION, names.MODEL_REQUEST,
    ):  # fmt: skip
        assert f"`{name}`" in text, name


def test_table_of_settings_is_current() -> None:
    document = ROOT / "docs" / "settings.md"
    spec = spec_from_file_location("settings_table", ROOT / "docs" / "_tools" / "settings_table.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    text = document.read_text(encoding="utf-8")

    assert script.current(text) == text, "run make diagrams"
    assert all(what for _, _, what in script.settings().values()), "each setting says what it is"


def test_tables_of_outcomes_are_current() -> None:
    spec = spec_from_file_location("outcome_table", ROOT / "docs" / "_tools" / "outcome_table.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (ROOT / "docs" / "outcomes.md").read_text(encoding="utf-8")

    assert script.current(text) == text, "run make diagrams"
    assert all(f"| `{answer}` |" in text for answer in Answer)
    assert all(f'| `"{word}"` |' in text for word in OnUnknown)


def test_public_face_is_complete_and_sorted() -> None:
    public = turnsaga.__all__

    assert public == sorted(public)
    assert all(hasattr(turnsaga, name) for name in public)


def test_each_pinned_part_has_its_reason() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    reasons = (ROOT / "docs" / "decisions" / "0001-parts.md").read_text(encoding="utf-8").lower()
    parts = {part.lower() for part in re.findall(r'^  "([A-Za-z0-9-]+)>=', project, re.MULTILINE)}

    assert len(parts) > 20
    assert {part for part in parts if part not in reasons} == set()


def test_constraints_pin_every_declared_part() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    parts = {part.lower() for part in re.findall(r'^  "([A-Za-z0-9-]+)>=', project, re.MULTILINE)}

    assert parts - pinned == set()
