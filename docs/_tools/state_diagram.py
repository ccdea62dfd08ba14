"""Draws the state diagrams of docs/ledger.md from the transition tables.

    python docs/_tools/state_diagram.py            write them into docs/ledger.md
    python docs/_tools/state_diagram.py --check    exit with 1 if they aren't current

Each diagram stands between a pair of comments, ``<!-- diagram:effects -->`` and ``<!-- /diagram -->``;
everything outside of them is left as it is.
"""

import argparse
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from turnsaga.ledger import CLOSED, OPEN_TURN, TRANSITIONS, TURN_TRANSITIONS, TurnState

__all__ = ["DOCUMENT", "current", "diagrams", "main"]

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "ledger.md"


def diagrams() -> Mapping[str, str]:
    """Return each diagram's name and its text, fenced as mermaid."""
    effects = [
        (before and before.value, event.value, after.value) for (before, event), after in TRANSITIONS.items()
    ]
    turns: list[tuple[str | None, str, str]] = [
        (None, "started", TurnState.RUNNING.value),
        (None, "queued", TurnState.QUEUED.value),
    ]
    turns += [(before.value, event.value, after.value) for (before, event), after in TURN_TRANSITIONS.items()]
    return {
        "effects": _drawn(effects, ends={state.value for state in CLOSED}),
        "turns": _drawn(turns, ends={state.value for state in TurnState if state not in OPEN_TURN}),
    }


def current(text: str) -> str:
    """Return a document with its diagrams redrawn.

    Raises:
        ValueError: the document lacks the comments of a diagram, or has them twice.
    """
    for name, drawn in diagrams().items():
        place = rf"<!-- diagram:{name} -->\n(?P<diagram>.*?)<!-- /diagram -->"
        matches = list(re.finditer(place, text, re.DOTALL))
        if len(matches) != 1:
            raise ValueError(f"need one <!-- diagram:{name} --> … <!-- /diagram -->")
        start, end = matches[0].span("diagram")
        text = text[:start] + drawn + text[end:]
    return text


def main(arguments: Sequence[str] | None = None, document: Path = DOCUMENT) -> int:
    """Write or check the diagrams; return the exit status."""
    parser = argparse.ArgumentParser(description="draw the state diagrams of docs/ledger.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if not current")
    check: bool = parser.parse_args(arguments).check
    text = document.read_text(encoding="utf-8")
    drawn = current(text)
    if check and drawn != text:
        sys.stderr.write(f"{document}: diagrams aren't current; run docs/_tools/state_diagram.py\n")
        return 1
    if not check:
        document.write_text(drawn, encoding="utf-8")
    return 0


def _drawn(moves: Sequence[tuple[str | None, str, str]], *, ends: Collection[str]) -> str:
    """Draw states and moves in the table's order; moves between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for before, event, after in moves:
        arrows.setdefault((before or "[*]", after), []).append(event)
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in arrows.items()]
    lines += [
        f"    {state} --> [*]" for state in dict.fromkeys(after for _, _, after in moves) if state in ends
    ]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    sys.exit(main())
