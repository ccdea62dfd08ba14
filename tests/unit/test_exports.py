"""``__all__`` of every public module: sorted, and just what the module means others to use."""

import ast
import importlib
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).resolve().parents[2] / "src"
# Alembic runs these; nobody imports them.
SCRIPTS: Final = frozenset({"turnsaga.store.migrations.env"})


def public_modules() -> dict[str, Path]:
    """Return the modules that others may import, by name: no part of their name starts with ``_``."""
    found: dict[str, Path] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        words = parts[:-1] if parts[-1] == "__init__" else parts
        name = ".".join(words)
        if name not in SCRIPTS and all(word.isidentifier() and not word.startswith("_") for word in words):
            found[name] = path
    return found


def public_names(path: Path) -> set[str]:
    """Return what a module makes for others: what it defines, and what a package takes from its modules."""
    names: set[str] = set()
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
                pass
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.ImportFrom(module=str(module), names=taken) if path.name == "__init__.py":
                if module.startswith(package_of(path)):
                    names |= {alias.asname or alias.name for alias in taken}
            case _:
                pass
    return {name for name in names if name == "__version__" or not name.startswith("_")}


def package_of(path: Path) -> str:
    return ".".join(path.parent.relative_to(SOURCE).parts)


def isort_order(name: str) -> tuple[bool, bool, str]:
    """Return a key that puts constants first, then classes, then what is written small."""
    return not name.isupper(), not name[0].isupper(), name


MODULES: Final = public_modules()


def test_modules_are_found() -> None:
    assert {"turnsaga", "turnsaga.names", "turnsaga.saga", "turnsaga.store.sql"} <= set(MODULES)
    assert not any("._" in name for name in MODULES)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_all_is_sorted_complete_and_there(name: str) -> None:
    module = importlib.import_module(name)
    exported: list[str] = module.__all__

    assert exported == sorted(set(exported), key=isort_order)
    assert set(exported) == public_names(MODULES[name])
    assert [each for each in exported if not hasattr(module, each)] == []
