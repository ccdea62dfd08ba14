"""Finds the deployment that ``--app`` names."""

import difflib
import importlib
import os
import sys
from importlib.util import find_spec
from types import ModuleType

from turnsaga.deployment import Deployment
from turnsaga.errors import TurnSagaError

__all__ = ["AppNotLoaded", "load_deployment"]


class AppNotLoaded(TurnSagaError):
    """``--app`` names nothing that can be used; says what to change."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"--app {name!r}: {reason}")
        self.name = name
        self.reason = reason


def load_deployment(name: str | None) -> Deployment:
    """Return the deployment of a name such as ``workers.build:app``, looked for from this folder on.

    The name is that of a ``Deployment``, or of a function without arguments that returns one.

    Raises:
        AppNotLoaded: there is none of that name, or its own code refuses.
    """
    if not name:
        raise AppNotLoaded("", "name the deployment, such as --app workers.build:app, or set TURNSAGA_APP")
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise AppNotLoaded(name, "write it as module:name, such as workers.build:app")
    if os.getcwd() not in sys.path:  # noqa: PTH109  # as the interpreter itself enters it
        # An installed command has its own folder there, and a deployment is seldom installed.
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  # as above
    module = _imported(name, module_name)
    if not hasattr(module, attribute):
        raise AppNotLoaded(
            name, f"module {module_name!r} has no {attribute!r}{_perhaps(attribute, list(vars(module)))}"
        )
    return _deployment(name, getattr(module, attribute))


def _imported(name: str, module: str) -> ModuleType:
    parent = ""
    for part in module.split("."):
        here = f"{parent}.{part}" if parent else part
        try:
            found = find_spec(here) is not None
        except Exception as error:
            raise _broken(name, parent, error) from error
        if not found:
            where = f"in package {parent!r}" if parent else f"here or on the path (from {os.getcwd()})"  # noqa: PTH109
            raise AppNotLoaded(name, f"there is no module {here!r} {where}")
        parent = here
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise _broken(name, module, error) from error


def _broken(name: str, module: str, error: Exception) -> AppNotLoaded:
    reason = str(error).split("\n")[0]
    return AppNotLoaded(name, f"importing {module!r} fails: {type(error).__name__}: {reason}")


def _deployment(name: str, found: object) -> Deployment:
    if callable(found):
        try:
            found = found()
        except TurnSagaError as error:
            raise AppNotLoaded(name, str(error)) from error
        except Exception as error:
            reason = str(error).split("\n")[0]
            raise AppNotLoaded(name, f"calling it fails: {type(error).__name__}: {reason}") from error
    if not isinstance(found, Deployment):
        raise AppNotLoaded(
            name,
            f"it is a {type(found).__name__}; name a turnsaga.deployment.Deployment, or what returns one",
        )
    return found


def _perhaps(asked: str, known: list[str]) -> str:
    close = difflib.get_close_matches(asked, [name for name in known if not name.startswith("_")], 1)
    return f"; did you mean {close[0]!r}?" if close else ""
