"""Somebody else's project: own workflow, own model, own tool, and packages whose names are those of ours."""

import json
from pathlib import Path

from temporalio.client import Client

import turnsaga
from tests.packaging.conftest import CONSUMER, Project

FILES = list(CONSUMER.rglob("*.py"))
ASK = "import turnsaga, importlib.metadata as about; print(turnsaga.__file__, about.version('turnsaga'))"


def test_wheel_is_what_is_imported_and_leaves_the_project_its_names(project: Project) -> None:
    file, version = project.run("python", "-c", ASK).split()
    own = project.run("python", "-c", "import workflows, activities; print(workflows.__file__)")

    assert Path(file).is_relative_to(project.binaries.parent)
    assert version == turnsaga.__version__
    assert Path(own.strip()).is_relative_to(project.folder)


def test_consumer_is_typed_for_mypy(project: Project) -> None:
    said = project.run("mypy", ".")

    assert said.startswith(f"Success: no issues found in {len(FILES)} source files")


def test_consumer_is_typed_for_pyright(project: Project) -> None:
    python = str(project.binaries / "python")
    said = json.loads(project.run("pyright", "--pythonpath", python, "--outputjson"))

    assert said["summary"]["filesAnalyzed"] == len(FILES)
    assert said["generalDiagnostics"] == []


def test_face_of_the_library_is_known_to_type_checkers(project: Project) -> None:
    """A wheel without ``py.typed``, or with names that are Any, would pass the checks of the consumer too."""
    wrong = project.folder.parent / "wrong.py"
    wrong.write_text("import turnsaga\n\nturnsaga.Principal(tenant=1, user='ada')\nturnsaga.Steward\n")
    python = str(project.binaries / "python")
    arguments = ("--strict", "--no-incremental", str(wrong))
    mypy = project.run("mypy", *arguments, ends_with=1)
    pyright = project.run("pyright", "--pythonpath", python, str(wrong), ends_with=1)

    assert "[arg-type]" in mypy
    assert "[attr-defined]" in mypy
    assert "reportArgumentType" in pyright
    assert "reportAttributeAccessIssue" in pyright


def test_consumer_runs(project: Project, client: Client, tmp_path: Path) -> None:
    address = client.service_client.config.target_host
    said = project.run(
        *("python", "-W", "error", "main.py"),
        TEMPORAL_ADDRESS=address,
        DESK_QUEUE="desk",
        DESK_FOLDER=str(tmp_path),
    )

    assert json.loads(said.splitlines()[-1]) == {
        "kept": {"turn": "completed", "lend Dune": "committed", "lend Emma": "committed"},
        "stopped": {"turn": "aborted", "lend Ulysses": "compensated", "lend Walden": "compensated"},
        "lent_meanwhile": ["Dune", "Emma", "Ulysses", "Walden"],
        "lent": ["Dune", "Emma"],
    }
