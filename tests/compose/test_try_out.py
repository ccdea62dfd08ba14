"""``deploy/try_out.py``: what it makes, and what it leaves alone."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from tests.compose.composed import compose, values
from tests.stack import REPOSITORY
from tests.web.served import settings_of
from web.identities import choose_identity


def make(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(REPOSITORY / "deploy" / "try_out.py"), str(folder), *more]
    return subprocess.run(argv, check=False, capture_output=True, text=True)


async def who(folder: Path, token: str) -> tuple[str, str, str]:
    """Return whom web takes the bearer for, by the settings of the try-out."""
    settings = settings_of(
        jwt_issuer=values()["TURNSAGA_JWT_ISSUER"],
        jwt_audience=values()["TURNSAGA_JWT_AUDIENCE"],
        jwt_keys=(folder / "turnsaga_jwt_keys").read_text(),
    )
    caller = await choose_identity(settings).caller(Headers({"authorization": f"Bearer {token.strip()}"}))
    return caller.tenant, caller.user, caller.role


async def test_web_takes_its_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    first = make(folder)
    second = make(folder, "--user", "globex/bob/operator")

    assert await who(folder, first.stdout) == ("acme", "ada", "user")
    assert await who(folder, second.stdout) == ("globex", "bob", "operator")


def test_it_makes_every_secret_of_the_compose_file_once(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    first = make(folder)
    made = {file.name: file.read_bytes() for file in folder.iterdir()}
    second = make(folder)

    assert set(made) == {*compose()["secrets"], "try_out_issuer.json"}
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == made
    assert first.stderr.count("made") == len(made)
    assert second.stderr == ""
    assert "d" not in json.loads(made["turnsaga_jwt_keys"])["keys"][0]
    assert made["ledger_db_password"] in made["turnsaga_database"]


def test_containers_may_read_the_secrets_and_nobody_else_on_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    make(folder)

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "try_out_issuer.json").stat().st_mode) == 0o600
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in compose()["secrets"]} == {0o444}


@pytest.mark.parametrize("user", ["ada", "/ada", "acme/"])
def test_user_that_is_none_is_one_line(tmp_path: Path, user: str) -> None:
    ended = make(tmp_path / "secrets", "--user", user)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"try_out: --user {user!r} isn't tenant/user or tenant/user/role\n"
    assert not (tmp_path / "secrets").exists()
