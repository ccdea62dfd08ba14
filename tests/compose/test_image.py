"""The image has what the services need, and nothing that it shouldn't have."""

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.compose.dockerfile import stage
from tests.stack import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_of_the_deployment_is_copied() -> None:
    packages = set(PROJECT["tool"]["importlinter"]["root_packages"]) - {"turnsaga"}

    assert {source for source, target in stage("runtime").copied if source == target} == packages


def test_what_is_copied_is_there_and_not_ignored() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {source for name in ("wheels", "runtime") for source, _ in stage(name).copied}

    assert "*" in lines
    assert copied == allowed
    assert all((REPOSITORY / source).exists() for source in copied)


def test_secrets_and_ledgers_stay_out_of_the_image() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.removeprefix("**/") for line in lines if line.startswith("**/")]

    for file in ("ledger.db", "ledger.db-wal", "__pycache__", "a.pyc"):
        assert any(fnmatch.fnmatch(file, pattern) for pattern in patterns), file


def test_it_runs_as_nobody_in_particular_and_from_a_pinned_version() -> None:
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    users = [line for line in stage("runtime").lines if line.startswith("USER ")]

    assert stage("runtime").lines[-1] == users[-1] == "USER 10001:10001"
    assert re.search(r"^ARG PYTHON=\d+\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    assert stage("wheels").base == stage("runtime").base == "python:${PYTHON}"


def test_what_it_installs_is_what_the_project_names() -> None:
    [build] = [line for line in stage("wheels").lines if line.startswith("RUN ")]
    extras = set(re.findall(r"\[([a-z,]+)\]", build))
    models = re.findall(r"pydantic-ai-slim\[\$\{MODELS\}\]", build)

    assert extras == {"app,postgres"}
    assert len(models) == 2
    assert "-c constraints.txt" in build
    assert "--no-index" in build


def test_linter_finds_nothing(tmp_path: Path) -> None:
    binary = str(Path(sys.executable).parent / "hadolint")
    worse = tmp_path / "Dockerfile"
    worse.write_text("FROM python\nRUN cd /tmp\n")

    found = [
        subprocess.run([binary, str(file)], check=False, capture_output=True, text=True)
        for file in (REPOSITORY / "Dockerfile", worse)
    ]

    assert (found[0].returncode, found[0].stdout) == (0, "")
    assert found[1].returncode == 1
