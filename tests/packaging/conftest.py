"""What is published, built once; and an environment that holds nothing else, made once."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSUMER = Path(__file__).parent / "consumer"
# Neither what is hidden nor what was made: a checkout that has only just been cloned holds none of it.
MADE = (
    "__pycache__",
    "*.py[cod]",
    "*.egg-info",
    "build",
    "dist",
    "node_modules",
    "*.db",
    "*.db-shm",
    "*.db-wal",
)


@dataclass(frozen=True)
class Distribution:
    """A wheel and a sdist that were built from one clean tree."""

    tree: Path
    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Project:
    """A copy of the consumer, and the environment in which the wheel is installed."""

    folder: Path
    binaries: Path

    def run(self, program: str, *arguments: str, ends_with: int = 0, **told: str) -> str:
        """Return what a program of the environment wrote; ``told`` is added to what its environment says."""
        return run(
            str(self.binaries / program), *arguments, folder=self.folder, told=told, ends_with=ends_with
        )


def run(*words: str, folder: Path, told: Mapping[str, str] | None = None, ends_with: int = 0) -> str:
    """Return what a command wrote; fail unless it ends as said. Nothing that Python is told leaks into it."""
    own = ("PYTHON", "VIRTUAL_ENV", "MYPY", "TURNSAGA", "TEMPORAL")
    passed = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    done = subprocess.run(
        words,
        cwd=folder,
        env={**passed, **(told or {})},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == ends_with, (
        f"{words} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def build(tree: Path, into: Path, *kinds: str) -> None:
    """Build what ``kinds`` ask for, by the pinned back end that the development environment has."""
    run(
        sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(into), str(tree), folder=tree
    )


@pytest.fixture(scope="session")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Build both from a copy, so that what lies about in this checkout is neither built nor changed."""
    tree = tmp_path_factory.mktemp("tree") / "turnsaga"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", *MADE))
    into = tmp_path_factory.mktemp("built")
    build(tree, into, "--wheel", "--sdist")
    [wheel], [sdist] = into.glob("*.whl"), into.glob("*.tar.gz")
    return Distribution(tree, wheel, sdist)


@pytest.fixture(scope="session")
def project(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Install the wheel and the two type checkers in an empty environment, beside the consumer."""
    folder = tmp_path_factory.mktemp("desk") / "consumer"
    shutil.copytree(CONSUMER, folder, ignore=shutil.ignore_patterns(*MADE))
    environment = folder.parent / "environment"
    venv.create(environment, with_pip=True)
    project = Project(folder, environment / "bin")
    project.run(
        *("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--constraint", str(ROOT / "constraints.txt")),
        *(str(distribution.wheel), "mypy", "pyright[nodejs]"),
    )
    return project
