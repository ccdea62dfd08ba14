"""The cells of the crash matrix: where a worker dies, with what kind of effect in hand, and what is right."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

__all__ = [
    "CELLS",
    "KINDS",
    "NEEDS_A_PERSON",
    "SAYS",
    "UNDOING",
    "Cell",
    "Kind",
    "Place",
    "Point",
]


class Point(IntEnum):
    """Where an attempt is when its worker is killed."""

    BEFORE_PREPARE = 1
    AFTER_PREPARE = 2
    AFTER_CLAIM = 3
    REQUEST_LEFT = 4
    APPLIED = 5
    ANSWERED = 6
    AFTER_OUTCOME = 7
    BETWEEN_UNDOS = 8
    AFTER_UNDO_CLAIM = 9
    UNDO_LEFT = 10
    UNDO_APPLIED = 11
    UNDO_ANSWERED = 12
    AFTER_UNDO_OUTCOME = 13


UNDOING: Final = frozenset(point for point in Point if point >= Point.BETWEEN_UNDOS)
"""Points inside a compensation; there is none without an abort."""

SAYS: Final[Mapping[Point, str]] = {
    Point.BEFORE_PREPARE: "before the effect's row",
    Point.AFTER_PREPARE: "after its row, held for the turn's end",
    Point.AFTER_CLAIM: "after the claim, nothing sent",
    Point.REQUEST_LEFT: "the request has left, and lands after the kill",
    Point.APPLIED: "applied, not answered",
    Point.ANSWERED: "answered, outcome not written",
    Point.AFTER_OUTCOME: "after the outcome's row",
    Point.BETWEEN_UNDOS: "between two undos",
    Point.AFTER_UNDO_CLAIM: "after the undo's claim, nothing sent",
    Point.UNDO_LEFT: "the undo's request has left, and lands after the kill",
    Point.UNDO_APPLIED: "the undo is applied, not answered",
    Point.UNDO_ANSWERED: "the undo is answered, outcome not written",
    Point.AFTER_UNDO_OUTCOME: "after the undo's outcome",
}


@dataclass(frozen=True)
class Place:
    """How far an effect is at the kill: its state in the ledger, and whether its last request has landed.

    ``state`` is None before there is a row.
    """

    state: str | None
    landed: bool = False


PLACES: Final[Mapping[Point, Place]] = {
    Point.BEFORE_PREPARE: Place(None),
    Point.AFTER_PREPARE: Place("prepared"),
    Point.AFTER_CLAIM: Place("committing"),
    Point.REQUEST_LEFT: Place("committing"),
    Point.APPLIED: Place("committing", landed=True),
    Point.ANSWERED: Place("committing", landed=True),
    Point.AFTER_OUTCOME: Place("committed", landed=True),
    Point.BETWEEN_UNDOS: Place("committed"),
    Point.AFTER_UNDO_CLAIM: Place("compensating"),
    Point.UNDO_LEFT: Place("compensating"),
    Point.UNDO_APPLIED: Place("compensating", landed=True),
    Point.UNDO_ANSWERED: Place("compensating", landed=True),
    Point.AFTER_UNDO_OUTCOME: Place("compensated", landed=True),
}


@dataclass(frozen=True)
class Kind:
    """What the downstream system promises about one tool; ``undo_keyed`` what about its undo."""

    name: str
    says: str
    tool: str
    system: str
    within: str
    keyed: bool = False
    asked: bool = False
    reversible: bool = True
    undo_keyed: bool = False
    undo_asked: bool = False

    def identity(self, name: str) -> str:
        """Return the business identity of this tool's effect on ``name``."""
        return f"{self.within}{name}"

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the arguments of a call about ``name``."""
        match self.system:
            case "pay":
                return {"customer": "cus_1", "amount": "10.00", "currency": "EUR", "invoice": name}
            case "crm":
                return {"kind": self.within.rstrip("/"), "id": name}
            case _:
                return {"channel": self.within.rstrip("/"), "text": name}


_PAY: Final = Kind(
    "keyed", "keyed", "charge_card", "pay", "",
    keyed=True, asked=True, undo_keyed=True, undo_asked=True,
)  # fmt: skip
_RECORD: Final = Kind(
    "asked", "once, asked about; undo keyed", "create_record", "crm", "record/",
    asked=True, undo_keyed=True, undo_asked=True,
)  # fmt: skip
_TICKET: Final = Kind(
    "undo-asked", "once, asked about; undo once, asked about", "open_ticket", "crm", "ticket/",
    asked=True, undo_asked=True,
)  # fmt: skip
_NOTE: Final = Kind("mute", "once, can't be asked; undo once, can't be asked", "file_note", "crm", "note/")
_POST: Final = Kind(
    "final", "once, can't be asked; no undo", "post_message", "hook", "crash/", reversible=False
)
KINDS: Final = (_PAY, _RECORD, _TICKET, _NOTE, _POST)

# In the order of KINDS; "-": there is no such cell, since nothing can be undone.
_GOES_ON: Final[Mapping[int, str]] = {
    1: "committed committed committed committed committed",
    2: "committed committed committed committed committed",
    3: "committed failed    failed    unknown   unknown  ",
    4: "committed committed committed unknown   unknown  ",
    5: "committed committed committed unknown   unknown  ",
    6: "committed committed committed unknown   unknown  ",
    7: "committed committed committed committed committed",
}
_STOPPED: Final[Mapping[int, str]] = {
    1: "nothing     nothing     nothing             nothing             nothing ",
    2: "released    released    released            released            released",
    3: "failed      failed      failed              unknown             unknown ",
    4: "compensated compensated compensated         unknown             unknown ",
    5: "compensated compensated compensated         unknown             unknown ",
    6: "compensated compensated compensated         unknown             unknown ",
    7: "compensated compensated compensated         compensated         standing",
    8: "compensated compensated compensated         compensated         -       ",
    9: "compensated compensated compensated         compensation_failed -       ",
    10: "compensated compensated compensated         compensation_failed -       ",
    11: "compensated compensated compensated         compensation_failed -       ",
    12: "compensated compensated compensated         compensation_failed -       ",
    13: "compensated compensated compensated         compensated         -       ",
}

NEEDS_A_PERSON: Final = frozenset({"unknown", "compensation_failed"})
"""Ends that a person has to look at."""


@dataclass(frozen=True)
class Cell:
    """One turn that is under way at a kill. ``outcome`` is the right end of the effect that was in hand."""

    point: Point
    kind: Kind
    stopped: bool
    outcome: str

    @property
    def name(self) -> str:
        return f"{self.kind.name}-{'stopped' if self.stopped else 'goes-on'}.at{int(self.point)}"

    @property
    def key(self) -> tuple[int, str, bool]:
        """What tells it from the others, in a report too."""
        return int(self.point), self.kind.name, self.stopped

    @property
    def earlier(self) -> str | None:
        """The name of what an undone turn did before: its undo comes afterwards, whatever became of this."""
        return f"{self.name}.first" if self.point in UNDOING else None

    @property
    def identity(self) -> str:
        return self.kind.identity(self.name)

    @property
    def place(self) -> Place:
        """How far it is at the kill, before it is stopped."""
        return PLACES[self.point]

    @property
    def needs_nobody(self) -> bool:
        """Tell whether the system can tell what became of every request that this end is made of."""
        commit = self.kind.keyed or self.kind.asked
        undo = self.kind.undo_keyed or self.kind.undo_asked
        return commit and (undo or self.point not in UNDOING)


def _cells() -> Iterator[Cell]:
    for stopped, table in ((False, _GOES_ON), (True, _STOPPED)):
        for number, row in table.items():
            for kind, outcome in zip(KINDS, row.split(), strict=True):
                if outcome != "-":
                    yield Cell(Point(number), kind, stopped, outcome)


CELLS: Final = tuple(_cells())
