"""The ways in which a turn with a mail in it ends, and what each mail's end is to be."""

from dataclasses import dataclass
from typing import Final, Literal

from turnsaga.ledger import TurnState

__all__ = ["ENDINGS", "Bill", "Ending", "Holding", "Ran"]

Holding = Literal["confirmed", "turn_end", "delay"]
"""What the mail waits for when the ending comes: its user's answer, the turn's end, or the delay after
the user has confirmed it."""

_EVERY: Final[tuple[Holding, ...]] = ("confirmed", "turn_end", "delay")


@dataclass(frozen=True)
class Ending:
    """One row of the matrix; ``turn`` is how a turnsaga turn ends by it.

    ``holdings`` are taken in turn. ``killed``: the worker is killed while the mail is in the turn, and
    what ends the turn comes for one half while it is dead, for the other once it is back.
    """

    name: str
    words: str
    turn: TurnState
    holdings: tuple[Holding, ...] = ("confirmed",)
    killed: bool = False
    valid: bool = False


ENDINGS: Final = (
    Ending("killed", "SIGKILL of the worker, then the user's stop", TurnState.ABORTED, _EVERY, killed=True),
    Ending("stopped", "the user's stop", TurnState.ABORTED, _EVERY),
    Ending("failed_tool", "another tool fails: the card is declined", TurnState.ABORTED, _EVERY),
    Ending("stale", "stale read: the record has moved", TurnState.ABORTED, _EVERY),
    Ending("deadline", "the turn's deadline", TurnState.FAILED, _EVERY),
    Ending("losing_branch", "losing branches: one mail of three is chosen", TurnState.COMPLETED),
    Ending("rejected", "rejected by the user", TurnState.COMPLETED),
    Ending("unanswered", "time-out of the confirmation", TurnState.COMPLETED),
    Ending("valid", "none: it is confirmed, or the turn completes", TurnState.COMPLETED, _EVERY, valid=True),
    Ending(
        "survived",
        "none: SIGKILL of the worker, then confirmed",
        TurnState.COMPLETED,
        ("confirmed", "delay"),
        killed=True,
        valid=True,
    ),
)
"""All rows. Those after which a mail might still go out late come first."""


@dataclass(frozen=True)
class Bill:
    """What one turn is about. ``name`` is in every business identity of it."""

    ending: Ending
    name: str
    number: int

    @property
    def holding(self) -> Holding:
        """What its mail waits for on turnsaga's side."""
        return self.ending.holdings[self.number % len(self.ending.holdings)]

    @property
    def invoices(self) -> tuple[str, ...]:
        """The invoices that the model mails."""
        if self.ending.name == "losing_branch":
            return tuple(f"{self.name}-{branch}" for branch in "abc")
        return (self.name,)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Those whose mail is to go out, once."""
        if self.ending.name == "losing_branch":
            return (self.invoices[self.number % len(self.invoices)],)
        return self.invoices if self.ending.valid else ()

    @property
    def forbidden(self) -> tuple[str, ...]:
        """Those whose mail must not go out."""
        return tuple(invoice for invoice in self.invoices if invoice not in self.wanted)

    @property
    def ended_while_dead(self) -> bool:
        """Whether its ending comes before the killed worker is back."""
        # Not by the last bit alone: each kind of holding meets both.
        return self.number // len(self.ending.holdings) % 2 == 0


@dataclass(frozen=True)
class Ran:
    """A turn that has ended, in its own side's word.

    ``turns`` are those of the ledger that made its effects; ``prepared`` counts its mails that came as far
    as being held, ``late_taken`` the answers to them that were accepted after its end.
    """

    bill: Bill
    state: str
    turns: tuple[str, ...] = ()
    prepared: int = 0
    late_taken: int = 0
