"""Writes the tables in docs/outcomes.md from ``turnsaga.outcomes``.

python docs/_tools/outcome_table.py            write them
python docs/_tools/outcome_table.py --check    exit with 1 if they aren't current
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from turnsaga.ledger import State
from turnsaga.outcomes import KNOWN, Answer, Known, then
from turnsaga.settle import Action

__all__ = ["DOCUMENT", "current", "main"]

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "outcomes.md"

_ANSWERS: Final = {
    Answer.DONE: "success (2xx), and its body can be read",
    Answer.NEVER_SENT: "connection refused, or none came about in time",
    Answer.CUT_OFF: "sent, then the connection was reset or closed",
    Answer.TIMED_OUT: "sent, and no answer in time",
    Answer.REFUSED: "a 4xx that refuses (400, 401, 402, 403, 404, 409, 410, 412, 422 …)",
    Answer.IN_PROGRESS: "409: a call under this key is in progress",
    Answer.OTHER_REQUEST: "the key is known with another body",
    Answer.TOO_MANY: "429",
    Answer.SERVER_ERROR: "5xx",
    Answer.REPLAYED_ERROR: "5xx that was stored under the key, and is given again",
    Answer.UNREADABLE: "success, and its body can't be read",
    Answer.UNEXPECTED: "anything else: 1xx, 3xx, 408, 425, 499",
}
_KNOWN: Final = {
    Known.APPLIED: "applied",
    Known.NOT_APPLIED: "not applied, by this attempt",
    Known.RUNNING: "nothing yet: it is at it",
    Known.UNKNOWN: "nothing",
    Known.FINAL: "nothing, and the same request would only be answered the same",
}
_THEN: Final[dict[State | Action, str]] = {
    State.COMMITTED: "`committed`",
    State.FAILED: "`failed`",
    Action.SEND_AGAIN: "sent again",
    Action.LOOK_UP: "asked about",
    Action.HAND_OVER: "a person's",
}
_SYSTEMS: Final = (
    ("keyed, can be asked", True, True),
    ("keyed", True, False),
    ("once, can be asked", False, True),
    ("once", False, False),
)


def current(text: str) -> str:
    """Return the document with its tables written anew."""
    for name, table in (("known", _known()), ("then", _then())):
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if len(place.findall(text)) != 1:
            raise ValueError(f"need one <!-- {name} --> … <!-- /{name} -->")
        text = place.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)  # type: ignore[misc]
    return text


def _known() -> str:
    lines = ["| answer | kind | what is known of the effect |", "| --- | --- | --- |"]
    lines += [f"| {_ANSWERS[answer]} | `{answer}` | {_KNOWN[known]} |" for answer, known in KNOWN.items()]
    return "\n".join(lines)


def _then() -> str:
    names = [name for name, _, _ in _SYSTEMS]
    lines = [f"| known | turn | {' | '.join(names)} |", f"| --- | --- | {' | '.join('---' for _ in names)} |"]
    for known in Known:
        for stopped in (False, True):
            cells = [
                _THEN[then(known, keyed=keyed, can_look_up=can_look_up, stopped=stopped)]
                for _, keyed, can_look_up in _SYSTEMS
            ]
            turn = "stopped" if stopped else "runs"
            lines.append(f"| `{known}` | {turn} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, document: Path = DOCUMENT) -> int:
    """Write or check the tables; return the exit status."""
    parser = argparse.ArgumentParser(description="write the tables of docs/outcomes.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if not current")
    options = parser.parse_args(arguments)
    text = document.read_text(encoding="utf-8")
    wanted = current(text)
    if options.check:
        if text == wanted:
            return 0
        sys.stderr.write(f"{document}: the tables aren't current; run docs/_tools/outcome_table.py\n")
        return 1
    document.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
