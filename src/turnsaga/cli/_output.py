"""How the command answers: a table for people, or JSON, one object a line."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["print_json", "print_table"]

_STYLES: Final[Mapping[str, str]] = {
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
    "unknown": "yellow",
    "compensation_failed": "red",
    "standing": "yellow",
}


def print_json(*rows: BaseModel) -> None:
    """Print each row as a JSON object on a line of its own, whatever the terminal's width."""
    for row in rows:
        print(row.model_dump_json())  # noqa: T201  # the command's answer


def print_table(columns: Sequence[str], rows: Sequence[BaseModel], *, empty: str) -> None:
    """Print these fields of the rows as a table, or say in words that there are none."""
    console = Console(highlight=False)
    if not rows:
        console.print(empty)
        return
    # What isn't a terminal is read by a program or kept in a file: nothing is cut there.
    whole = Console(highlight=False, width=None if console.is_terminal else 400)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        values = [_shown(getattr(row, name)) for name in columns]
        # As Text: what users and vendors wrote isn't markup.
        table.add_row(*(Text(value, style=_STYLES.get(value, "")) for value in values))
    whole.print(table)


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value))
