"""The versions of Python and of the parts that the library needs."""

import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from packaging.requirements import Requirement

from turnsaga.deployment import Check, Finding

__all__ = ["judge_packages", "judge_python", "package_checks"]

_OLDEST_PYTHON: Final = (3, 11)


def package_checks(*, extras: Iterable[str]) -> tuple[Check, ...]:
    """Return checks of Python, and of the library's parts with those of these extras."""
    wanted = tuple(extras)

    async def python() -> Finding:
        return judge_python(sys.version_info[:3])

    async def parts() -> Finding:
        return judge_packages(_needed(wanted), version)

    return Check("packages.python", python), Check("packages.parts", parts)


def judge_python(here: tuple[int, ...]) -> Finding:
    """Return whether this interpreter will do."""
    said = f"Python {'.'.join(map(str, here))}"
    if here[:2] < _OLDEST_PYTHON:
        return Finding.fail(f"{said} is too old", "use Python 3.11 or newer")
    return Finding.ok(said)


def judge_packages(needed: Iterable[Requirement], installed: Callable[[str], str]) -> Finding:
    """Return whether each part is installed in a version that the library declares."""
    wrong: list[str] = []
    seen: list[str] = []
    for part in needed:
        try:
            here = installed(part.name)
        except PackageNotFoundError:
            wrong.append(f"{part.name} is missing")
            continue
        seen.append(f"{part.name} {here}")
        if not part.specifier.contains(here, prereleases=True):
            wrong.append(f"{part.name} {here} isn't {part.specifier}")
    if wrong:
        return Finding.fail(
            "; ".join(wrong), "install what constraints.txt pins, or what pyproject.toml asks for"
        )
    return Finding.ok(", ".join(seen))


def _needed(extras: tuple[str, ...]) -> list[Requirement]:
    found = [Requirement(line) for line in requires("turnsaga") or ()]
    return [
        part
        for part in found
        if part.name != "turnsaga"
        and (part.marker is None or any(part.marker.evaluate({"extra": extra}) for extra in ("", *extras)))
    ]
