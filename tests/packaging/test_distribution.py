"""What is published: a wheel that holds the library alone, and a sdist that builds the same wheel."""

import tarfile
from email.parser import BytesParser
from pathlib import Path
from zipfile import ZipFile

import turnsaga
from tests.packaging.conftest import Distribution, build

DIST_INFO = f"turnsaga-{turnsaga.__version__}.dist-info"
LIBRARY = Path("src", "turnsaga")


def names_in(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_the_library_alone(distribution: Distribution) -> None:
    top = {name.split("/")[0] for name in names_in(distribution.wheel)}

    assert (distribution.tree / "workflows").is_dir()
    assert top == {"turnsaga", DIST_INFO}


def test_wheel_holds_the_whole_library(distribution: Distribution) -> None:
    source = distribution.tree / "src"
    expected = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    held = {name for name in names_in(distribution.wheel) if not name.startswith(DIST_INFO)}

    assert held == expected
    assert {
        "turnsaga/py.typed",
        "turnsaga/store/migrations/env.py",
        "turnsaga/store/migrations/script.py.mako",
        "turnsaga/store/migrations/versions/0001_the_first_ledger.py",
    } <= held


def test_wheel_carries_its_licence_and_says_which_version_it_is(distribution: Distribution) -> None:
    with ZipFile(distribution.wheel) as archive:
        licence = archive.read(f"{DIST_INFO}/licenses/LICENSE").decode()
        metadata = BytesParser().parsebytes(archive.read(f"{DIST_INFO}/METADATA"))

    assert licence == (distribution.tree / "LICENSE").read_text(encoding="utf-8")
    assert metadata["Name"] == "turnsaga"
    assert metadata["Version"] == turnsaga.__version__
    assert metadata["License-Expression"] == "MIT"


def test_sdist_holds_the_library_and_what_is_said_of_it(distribution: Distribution) -> None:
    with tarfile.open(distribution.sdist) as archive:
        files = {Path(*Path(member.name).parts[1:]) for member in archive.getmembers() if member.isfile()}
    library = {file for file in files if LIBRARY in file.parents}
    beside = {str(file) for file in files - library}

    assert Path(LIBRARY, "py.typed") in library
    assert beside - {".gitignore"} == {
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
    }


def test_sdist_builds_the_same_wheel(distribution: Distribution, tmp_path: Path) -> None:
    with tarfile.open(distribution.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    into = tmp_path / "again"
    build(unpacked, into, "--wheel")
    [again] = into.iterdir()

    assert again.name == distribution.wheel.name
    assert again.read_bytes() == distribution.wheel.read_bytes()
