"""Writes the tables of commands and options in docs/cli.md from the command itself.

python docs/_tools/command_table.py            write them
python docs/_tools/command_table.py --check    exit with 1 if they aren't current
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from turnsaga.cli._commands import command

__all__ = ["DOCUMENT", "commands", "current", "main", "options"]

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "cli.md"


def commands() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return each command as it is typed, with its first sentence and the names of its options."""
    return {
        words: (
            str(each.help).split("\n")[0],
            tuple(parameter.opts[0] for parameter in each.params if parameter.param_type_name == "option"),
        )
        for words, each in _leaves("turnsaga", get_command(command))
    }


def options() -> dict[str, str]:
    """Return each option with what it is; one name means the same in every command."""
    found: dict[str, str] = {}
    for _, each in _leaves("turnsaga", get_command(command)):
        for parameter in each.params:
            if parameter.param_type_name != "option":
                continue
            name = parameter.opts[0]
            # A value's choices are the reader's own words in another table: states are in ledger.md.
            if found.setdefault(name, parameter.help) != parameter.help:
                raise ValueError(f"{name} means one thing here and another there; name one of them otherwise")
    return found


def current(text: str) -> str:
    """Return the document with its tables written anew."""
    table = ["| command | does | options |", "| --- | --- | --- |"]
    for words, (what, names) in commands().items():
        table.append(f"| `{words}` | {what} | {', '.join(f'`{name}`' for name in names)} |")
    told = ["| option | what it is |", "| --- | --- |"]
    told += [f"| `{name}` | {what} |" for name, what in sorted(options().items())]
    return _between(_between(text, "commands", table), "options", told)


def main(arguments: Sequence[str] | None = None, document: Path = DOCUMENT) -> int:
    """Write or check the tables; return the exit status."""
    parser = argparse.ArgumentParser(description="write the tables of docs/cli.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if not current")
    check: bool = parser.parse_args(arguments).check
    text = document.read_text(encoding="utf-8")
    written = current(text)
    if check and written != text:
        sys.stderr.write(f"{document}: a table isn't current; run docs/_tools/command_table.py\n")
        return 1
    if not check:
        document.write_text(written, encoding="utf-8")
    return 0


def _between(text: str, name: str, lines: Sequence[str]) -> str:
    place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if len(place.findall(text)) != 1:
        raise ValueError(f"need one <!-- {name} --> … <!-- /{name} -->")
    written = "\n".join(lines)
    return place.sub(lambda match: f"{match[1]}{written}\n{match[2]}", text)


def _leaves(words: str, group: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  # typer's own command types
    """Yield each command that does something, as it is typed, with its arguments in capitals."""
    inner = getattr(group, "commands", None)
    if inner is None:
        arguments = [each.metavar for each in group.params if each.param_type_name == "argument"]
        yield " ".join([words, *arguments]), group
        return
    for name, each in inner.items():
        yield from _leaves(f"{words} {name}", each)


if __name__ == "__main__":
    sys.exit(main())
