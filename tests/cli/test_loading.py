"""``--app``: every way to name it wrongly ends with 2 and one line that says what to change."""

import os
import sys
from pathlib import Path

import pytest

from tests.cli.command import run
from turnsaga.cli import __main__ as entry
from turnsaga.cli._loading import AppNotLoaded, load_deployment
from turnsaga.deployment import Deployment

GOOD = """
from contextlib import asynccontextmanager
from turnsaga.deployment import Deployment
from turnsaga.errors import InvalidRequest
from turnsaga.tools import Tools

@asynccontextmanager
async def tools():
    yield Tools([])

here = Deployment(open_tools=tools, database="sqlite:///nowhere.db")
number = 7

def made():
    return here

def refused():
    raise InvalidRequest("TURNSAGA_PAY_URL", "isn't an address")

def broken():
    return {}["missing"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a deployment in it, from which the command is called."""
    (tmp_path / "shop_build.py").write_text(GOOD, encoding="utf-8")
    (tmp_path / "shop_torn.py").write_text("import not_installed_anywhere\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in {"", str(Path.cwd())}])
    for name in ("shop_build", "shop_torn"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["shop_build:here", "shop_build:made"])
def test_object_or_function_of_the_present_folder_is_taken(name: str) -> None:
    found = load_deployment(name)

    assert isinstance(found, Deployment)
    assert found.task_queue == "turnsaga"
    assert "nowhere" not in repr(found), "a database's URL can hold its password"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (None, "or set TURNSAGA_APP"),
        ("", "or set TURNSAGA_APP"),
        ("shop_build", "write it as module:name"),
        (":here", "write it as module:name"),
        ("shop_build:", "write it as module:name"),
        ("shop_build:he re", "write it as module:name"),
        ("shop_bild:here", "there is no module 'shop_bild'"),
        ("shop_build.deeper:here", "'shop_build.deeper'|importing 'shop_build' fails"),
        ("shop_build:hre", "module 'shop_build' has no 'hre'; did you mean 'here'"),
        ("shop_torn:here", "importing 'shop_torn' fails: ModuleNotFoundError.*not_installed_anywhere"),
        ("shop_build:number", "it is a int; name a turnsaga.deployment.Deployment"),
        ("shop_build:refused", "TURNSAGA_PAY_URL: isn't an address"),
        ("shop_build:broken", "calling it fails: KeyError"),
    ],
)
def test_wrong_name_says_what_to_change(name: str | None, says: str) -> None:
    with pytest.raises(AppNotLoaded, match=says) as caught:
        load_deployment(name)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("worker.build:app", "there is no module 'worker'"),
        ("workers.build:ap", "did you mean 'app'?"),
        ("workers.build:app", "TURNSAGA_SWEEP_EVERY_S='0': Input should be greater than or equal to 1"),
    ],
)
async def test_command_that_can_t_begin_ends_with_2(app: str, says: str) -> None:
    env = {**os.environ, "TURNSAGA_APP": app, "TURNSAGA_SWEEP_EVERY_S": "0"}
    for words in (("doctor",), ("turns", "list"), ("sweep", "--json")):
        code, out, err = await run(*words, env=env)

        assert (code, out) == (2, "")
        assert says in err
        assert len(err.splitlines()) == 1


async def test_option_wins_over_the_environment(tmp_path: Path) -> None:
    code, _, err = await run(
        "doctor", "--app", "said.here:app", env={**os.environ, "TURNSAGA_APP": "x:y"}, cwd=tmp_path
    )

    assert code == 2
    assert "there is no module 'said'" in err


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def without_typer(name: str) -> object | None:
        return None if name == "typer" else object()

    monkeypatch.setattr(entry, "find_spec", without_typer)

    with pytest.raises(SystemExit) as left:
        entry.main()

    assert left.value.code == 2
    assert capsys.readouterr().err == "turnsaga: the command needs its extra: pip install 'turnsaga[cli]'\n"


async def test_version_is_said() -> None:
    code, out, _ = await run("--version", env=os.environ)

    assert code == 0
    assert out.startswith("turnsaga 0.")
