"""The page of docs/benchmarks.md that figures make: tables between marks; the words around them stay."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["write_tables"]

PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"

Line = Mapping[str, Any]


def write_tables(lines: Sequence[Line]) -> None:
    """Replace each table for which there are lines."""
    page = PAGE.read_text(encoding="utf-8")
    for bench, make in _MAKERS.items():
        mine = [line for line in lines if line["bench"] == bench]
        if mine:
            page = _placed(page, bench, make(mine))
    PAGE.write_text(page, encoding="utf-8")


def _placed(page: str, bench: str, table: str) -> str:
    begin, end = f"<!-- {bench} -->", f"<!-- /{bench} -->"
    if begin not in page or end not in page:
        raise ValueError(f"{PAGE.name} has no place for {bench!r}")
    return f"{page.partition(begin)[0]}{begin}\n{table}\n{end}{page.partition(end)[2]}"


def _compared(lines: Sequence[Line]) -> str:
    rows: list[Sequence[object]] = []
    for at_once in sorted({line["at_once"] for line in lines}):
        bare = _of(lines, "bare", at_once)
        for side in ("bare", "sqlite", "postgres"):
            mine = _of(lines, side, at_once)
            if not mine:
                continue
            cpu = _ratio(mine, bare, "cpu_ms_total")
            speed = _ratio(mine, bare, "turns_per_s")
            rows.append(
                (
                    at_once,
                    side,
                    f"{_mean(mine, 'turns_per_s'):.1f} ({speed})",
                    f"{_mean(mine, 'cpu_ms_total'):.0f} ({cpu})",
                    _parts(mine),
                    _spread(mine, "ack_ms"),
                    _spread(mine, "fence_ms"),
                    _spread(mine, "undone_ms"),
                    f"{_mean(mine, 'history_events_per_effect'):.1f}",
                    f"{_mean(mine, 'history_bytes_per_effect'):.0f}",
                    _spread(mine, "ledger_ms"),
                )
            )
    head = (
        "at once",
        "side",
        "turns/s (of bare)",
        "CPU ms a turn (of bare)",
        "server + worker + client + Postgres",
        "abort acknowledged",
        "abort → fence",
        "abort → all undone",
        "history events an effect",
        "bytes",
        "ledger transaction",
    )
    return f"{_table(head, rows)}\n\n{_load(lines)}"


def _grown(lines: Sequence[Line]) -> str:
    rows = [
        (
            line["side"],
            line.get("ledger_effects", line["effects"] if line["bench"] == "effects" else line["at_once"]),
            f"{line['turns_per_s']:.2f}",
            f"{line['cpu_ms_total'] / line['effects']:.1f}",
            _spread([line], "ack_ms"),
            f"{line['undone_ms']['p50'] / line['effects']:.1f}",
            f"{line['history_events_per_effect']:.1f}",
            line["history_bytes_per_effect"],
            _spread([line], "ledger_ms"),
        )
        for line in lines
    ]
    what = {"effects": "effects in the turn", "turns": "turns at once", "ledger": "effects in the ledger"}
    head = (
        "side",
        what[lines[0]["bench"]],
        "turns/s",
        "CPU ms an effect",
        "abort acknowledged",
        "ms an undo",
        "history events an effect",
        "bytes",
        "ledger transaction",
    )
    return f"{_table(head, rows)}\n\n{_load(lines)}"


def _leaked(lines: Sequence[Line]) -> str:
    ours = {line["ending"]: line for line in lines if line["side"] == "turnsaga"}
    bare = {line["ending"]: line for line in lines if line["side"] == "bare"}
    rows: list[Sequence[object]] = [
        (
            line["words"],
            line["turns"],
            line["forbidden"] or "-",
            _count(line, "leaked", of="forbidden"),
            _count(bare[name], "leaked", of="forbidden"),
            line["wanted"] or "-",
            _count(line, "arrived", of="wanted"),
            _count(bare[name], "arrived", of="wanted"),
            f"{line['refunded']} of {line['charged']}",
            f"{bare[name]['refunded']} of {bare[name]['charged']}",
        )
        for name, line in ours.items()
    ]
    head = (
        "what ends the turn",
        "turns a side",
        "mails that must not go out",
        "turnsaga: went out",
        "plain saga: went out",
        "mails that must",
        "turnsaga: went out, once",
        "plain saga",
        "charges refunded: turnsaga",
        "plain saga",
    )
    return f"{_table(head, rows)}\n\n{_summed(ours, bare)}\n\n{_load(lines)}"


def _count(line: Line, name: str, *, of: str) -> object:
    return line[name] if line[of] else "-"


def _summed(ours: Mapping[str, Line], bare: Mapping[str, Line]) -> str:
    forbidden, leaked, in_bare, doubled, differences = (
        sum(line["forbidden"] for line in ours.values()),
        sum(line["leaked"] for line in ours.values()),
        sum(line["leaked"] for line in bare.values()),
        sum(line["doubled"] for line in (*ours.values(), *bare.values())),
        sum(len(line["differences"]) for line in ours.values()),
    )
    return (
        f"Of {forbidden} mails a side that must not go out: turnsaga {leaked}, plain saga {in_bare}. "
        f"Mails that went out twice, on either side: {doubled}. "
        f"Places where turnsaga's ledger and the vendors disagree: {differences}."
    )


def _crashed(lines: Sequence[Line]) -> str:
    rows: list[Sequence[object]] = []
    for cell, side in dict.fromkeys((line["cell"], line["side"]) for line in lines):
        mine = [line for line in lines if (line["cell"], line["side"]) == (cell, side)]
        says = Counter(line["says"] for line in mine)
        rows.append(
            (
                mine[0]["words"],
                side,
                len(mine),
                *(sum(line[name] for line in mine) for name in ("applied", "undone", "standing")),
                *(sum(len(line[name]) for line in mine) for name in ("applied_twice", "undone_twice")),
                ", ".join(f"{word} {count}" for word, count in says.items()),
                *(sum(line[name] for line in mine) for name in ("agrees", "leak", "double", "stuck")),
                f"{statistics.median(line['seconds'] for line in mine):.0f}",
            )
        )
    head = (
        "what happens",
        "side",
        "runs",
        "applied",
        "undone",
        "standing",
        "applied twice",
        "undone twice",
        "the side says",
        "and that agrees",
        "silent leak",
        "double",
        "stuck",
        "seconds",
    )
    versions = ", ".join(dict.fromkeys(line["version"] for line in lines))
    return f"{_table(head, rows)}\n\nVersions: {versions}.\n\n{_load(lines)}"


def _shared(lines: Sequence[Line]) -> str:
    rows: list[Sequence[object]] = []
    for side in dict.fromkeys(line["side"] for line in lines):
        own = [line for line in lines if (line["side"], line["records"]) == (side, "own")]
        for kind in ("own", "shared"):
            mine = [line for line in lines if (line["side"], line["records"]) == (side, kind)]
            effects = sum(sum(line["effects"].values()) for line in mine)
            released = sum(line["effects"].get("released", 0) for line in mine)
            rows.append(
                (
                    side,
                    kind,
                    f"{_mean(mine, 'turns_per_s'):.1f} ({_ratio(mine, own, 'turns_per_s')})",
                    f"{_mean(mine, 'cpu_ms_total'):.0f} ({_ratio(mine, own, 'cpu_ms_total')})",
                    _spread(mine, "turn_ms"),
                    f"{released} of {effects}",
                    f"{_mean(mine, 'ledger_transactions_per_turn'):.1f}",
                    _spread(mine, "ledger_ms"),
                )
            )
    head = (
        "side",
        "records",
        "turns/s (of own)",
        "CPU ms a turn (of own)",
        "a turn, ms",
        "effects given up",
        "ledger transactions a turn",
        "ledger transaction",
    )
    return f"{_table(head, rows)}\n\n{_load(lines)}"


def _of(lines: Sequence[Line], side: str, at_once: int) -> list[Line]:
    return [line for line in lines if (line["side"], line["at_once"]) == (side, at_once)]


def _mean(lines: Sequence[Line], name: str) -> float:
    return float(statistics.mean(line[name] for line in lines))


def _ratio(mine: Sequence[Line], bare: Sequence[Line], name: str) -> str:
    if not bare:
        return "-"
    each = [one[name] / other[name] for one, other in zip(mine, bare, strict=True)]
    return f"{_mean(mine, name) / _mean(bare, name):.2f}, {min(each):.2f} to {max(each):.2f}"


def _parts(lines: Sequence[Line]) -> str:
    parts: Mapping[str, float] = lines[0]["cpu_ms"]
    return " + ".join(f"{statistics.mean(line['cpu_ms'][part] for line in lines):.0f}" for part in parts)


def _spread(lines: Sequence[Line], name: str) -> str:
    told = [line[name] for line in lines if line[name] is not None]
    if not told:
        return "-"
    return (
        f"{statistics.median(one['p50'] for one in told):.1f} / "
        f"{statistics.median(one['p99'] for one in told):.1f}"
    )


def _load(lines: Sequence[Line]) -> str:
    loads = [line["load"][0] for line in lines]
    return f"Load average of the machine meanwhile: {min(loads)} to {max(loads)}."


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    ruler = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(str(cell) for cell in row)} |" for row in (head, ruler, *rows))


_MAKERS: Final = {
    "leaks": _leaked,
    "crashes": _crashed,
    "compare": _compared,
    "effects": _grown,
    "turns": _grown,
    "ledger": _grown,
    "shared": _shared,
}
