"""Writes the table of settings in docs/settings.md from the settings classes.

python docs/_tools/settings_table.py            write it
python docs/_tools/settings_table.py --check    exit with 1 if it isn't current
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from activities.settings import VendorSettings
from sandbox.settings import SandboxSettings
from settings.reading import Settings, holds_secret, variable
from web.settings import WebSettings
from workers.settings import WorkerSettings

__all__ = ["DOCUMENT", "current", "main", "settings"]

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "settings.md"
READERS: Final[tuple[tuple[str, type[Settings]], ...]] = (
    ("worker", WorkerSettings),
    ("worker", VendorSettings),
    ("web", WebSettings),
    ("sandbox", SandboxSettings),
)


def settings() -> dict[str, tuple[set[str], str, str]]:
    """Return each variable with who reads it, its default, and what it is."""
    found: dict[str, tuple[set[str], str, str]] = {}
    for reader, kind in READERS:
        for field_name, field in kind.model_fields.items():
            name = variable(kind, field_name)
            readers = found[name][0] if name in found else set[str]()
            what = f"{field.description or ''}{' (secret)' if holds_secret(field) else ''}"
            found[name] = (readers | {reader}, _default(field.default), what)
    return found


def current(text: str) -> str:
    """Return the document with its table written anew."""
    lines = ["| variable | read by | default | what it is |", "| --- | --- | --- | --- |"]
    for name, (readers, default, what) in sorted(settings().items()):
        lines.append(f"| `{name}` | {', '.join(sorted(readers))} | {default} | {what} |")
    place = re.compile(r"(<!-- settings -->\n).*?(<!-- /settings -->)", re.DOTALL)
    if len(place.findall(text)) != 1:
        raise ValueError("need one <!-- settings --> … <!-- /settings -->")
    table = "\n".join(lines)
    return place.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)


def main(arguments: Sequence[str] | None = None, document: Path = DOCUMENT) -> int:
    """Write or check the table; return the exit status."""
    parser = argparse.ArgumentParser(description="write the table of docs/settings.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if not current")
    check: bool = parser.parse_args(arguments).check
    text = document.read_text(encoding="utf-8")
    written = current(text)
    if check and written != text:
        sys.stderr.write(f"{document}: the table isn't current; run docs/_tools/settings_table.py\n")
        return 1
    if not check:
        document.write_text(written, encoding="utf-8")
    return 0


def _default(value: object) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return "" if value is None else f"`{value}`"


if __name__ == "__main__":
    sys.exit(main())
