"""Where a run is when its worker is killed, or when it is stopped, and what the run is about."""

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CELLS", "LANDS_AFTER_S", "Cell", "Holds", "Order", "Stop"]

LANDS_AFTER_S: Final = 2.0
"""How long after the kill or the stop a request that was on the wire is applied."""

Holds = Literal["request", "dropped", "answer", "answered", "cut"]
"""What becomes of the request that a cell is about: it lands late; it never arrives; it is applied and its
answer kept back; its answer has just been passed on; it is applied and its connection cut."""

Stop = Literal["cancel", "message"]
"""How it is stopped: by what the side itself calls a cancel, or by a message that its code looks for."""


@dataclass(frozen=True)
class Cell:
    """One row, about the second charge, or with ``undo`` about the undo of that number, counted from 1.

    One with ``undo`` is stopped before that; one that isn't ``killed`` is stopped, as ``stop`` says, once
    its request is where it is to be.
    """

    name: str
    words: str
    holds: Holds
    killed: bool = False
    undo: int | None = None
    stop: Stop | None = None

    @property
    def stopped(self) -> bool:
        """Whether nothing of it is to stand."""
        return self.undo is not None or self.stop is not None


CELLS: Final = (
    Cell("a", "SIGKILL: charge on the wire, applied 2 s later", "request", killed=True),
    Cell("b", "SIGKILL: charge applied, not answered", "answer", killed=True),
    Cell("c", "SIGKILL: charge answered, not recorded", "answered", killed=True),
    Cell("d", "SIGKILL: between two undos", "dropped", killed=True, undo=2),
    Cell("e1", "SIGKILL: undo on the wire, applied 2 s later", "request", killed=True, undo=1),
    Cell("e2", "SIGKILL: undo applied, not answered", "answer", killed=True, undo=1),
    Cell("f", "cancel: charge on the wire, applied 2 s later", "request", stop="cancel"),
    Cell("g", "cancel: charge applied, its connection cut", "cut", stop="cancel"),
    Cell("f2", "stop by message: charge on the wire, applied 2 s later", "request", stop="message"),
    Cell("g2", "stop by message: charge applied, its connection cut", "cut", stop="message"),
)
"""All rows. In those of an undo the run has committed everything, and is stopped."""


@dataclass
class Order:
    """What one run does: makes a record, and charges twice.

    ``waits``: it goes on only once it is stopped.
    """

    name: str
    waits: bool = False

    @property
    def record(self) -> str:
        """The record's id; its kind is ``ticket``."""
        return self.name

    @property
    def invoices(self) -> tuple[str, str]:
        """What is charged for."""
        return f"{self.name}-first", f"{self.name}-second"

    @property
    def identities(self) -> tuple[str, ...]:
        """The business identities of all three, as the vendors know them."""
        return f"ticket/{self.record}", *self.invoices
