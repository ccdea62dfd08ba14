"""``python -m tests.e2e.crash_table REPORT``: put the figures of a report into docs/crashes.md."""

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.e2e.crash_cells import KINDS, NEEDS_A_PERSON, SAYS
from tests.stack import REPOSITORY

__all__ = ["write_tables"]

PAGE: Final = REPOSITORY / "docs" / "crashes.md"
_ABSENT: Final = "-"

Line = Mapping[str, Any]


def write_tables(lines: Sequence[Line]) -> None:
    """Replace the tables for which there are lines; the words around them stay."""
    page = PAGE.read_text(encoding="utf-8")
    of_workers = [line for line in lines if "point" in line]
    of_parts = [line for line in lines if "part" in line]
    if of_workers:
        page = _placed(page, "workers", _workers(of_workers))
    if of_parts:
        page = _placed(page, "parts", _parts(of_parts))
    PAGE.write_text(page, encoding="utf-8")


def _workers(lines: Sequence[Line]) -> str:
    head = ["killed"]
    for kind in KINDS:
        head += [f"{kind.name}: goes on", f"{kind.name}: stopped"]
    head.append("settled after, s")
    rows: list[Sequence[str]] = []
    for point, says in SAYS.items():
        here = [line for line in lines if line["point"] == int(point)]
        cells = [
            _ends(line["outcome"] for line in here if (line["kind"], line["stopped"]) == (kind.name, stopped))
            for kind in KINDS
            for stopped in (False, True)
        ]
        rows.append([f"{int(point)}: {says}", *cells, _spread(here)])
    wrong = {
        "twice, or sent again where that may not be": sum(line["duplicates"] for line in lines),
        "on which ledger and vendor disagree": sum(bool(line["lost"]) for line in lines),
        "in doubt, or standing after a stop, and not shown": sum(bool(line["silent"]) for line in lines),
        "told out of order": sum(bool(line["disorder"]) for line in lines),
        "before a turn that then didn't run": sum(line["next_turn"] != "completed" for line in lines),
    }
    able = [
        kind.name for kind in KINDS if (kind.keyed or kind.asked) and (kind.undo_keyed or kind.undo_asked)
    ]
    mine = [line for line in lines if line["kind"] in able]
    return "\n".join(
        (
            _table(head, rows),
            "",
            f"{len(lines)} turns. Effects {'; '.join(f'{what}: {count}' for what, count in wrong.items())}.",
            "",
            f"Settled without a person: {_alone(mine)} of {', '.join(able)}; {_alone(lines)} of all.",
        )
    )


def _parts(lines: Sequence[Line]) -> str:
    parts = list(dict.fromkeys(line["part"] for line in lines))
    stages = list(dict.fromkeys((line["stage"], line["tool"], line["stopped"]) for line in lines))
    rows: list[Sequence[str]] = []
    for stage in stages:
        of_stage = [line for line in lines if (line["stage"], line["tool"], line["stopped"]) == stage]
        ends = [
            _ends(end for line in of_stage if line["part"] == part for end in line["outcomes"])
            for part in parts
        ]
        rows.append([stage[0], stage[1], "stopped" if stage[2] else "goes on", *ends])
    took = [_spread([line for line in lines if line["part"] == part]) for part in parts]
    rows.append(["settled after, s", "", "", *took])
    return "\n".join(
        (
            _table(["at the kill", "tool", "turn", *parts], rows),
            "",
            f"Settled without a person: {_alone(lines)}.",
        )
    )


def _alone(lines: Sequence[Line]) -> str:
    return f"{sum(not line['person'] for line in lines)} of {len(lines)} turns"


def _ends(outcomes: Iterable[str]) -> str:
    counted = Counter(outcomes)
    if not counted:
        return _ABSENT
    return ", ".join(
        f"{count} **{end}**" if end in NEEDS_A_PERSON else f"{count} {end}" for end, count in counted.items()
    )


def _spread(lines: Sequence[Line]) -> str:
    seconds = [line["seconds"] for line in lines]
    return f"{statistics.median(seconds):.0f} (to {max(seconds):.0f})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _placed(page: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"{PAGE.name} has no place for {name!r}")
    return f"{page.partition(begin)[0]}{begin}\n{table}\n{end}{page.partition(end)[2]}"


if __name__ == "__main__":
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    write_tables([json.loads(line) for line in text.splitlines()])
