"""People's words: answers about held effects, and rulings on those that need somebody."""

from typing import Final, Literal

from pydantic import Field

from turnsaga.models._refs import Frozen

__all__ = [
    "MAX_NOTE",
    "Decision",
    "DecisionAnswer",
    "DecisionRequest",
    "Nudge",
    "Ruling",
    "RulingWord",
    "TurnDecision",
]


class DecisionRequest(Frozen):
    """The payload of the updates ``confirm`` and ``reject``: an answer to exactly what was shown."""

    effect: str = Field(min_length=1, max_length=64)
    version: int = Field(ge=1, strict=True)
    digest: str = Field(min_length=1, max_length=100)
    by: str | None = Field(default=None, max_length=200)


class Decision(Frozen):
    """A person's answer about an effect that is held for it, as the ledger takes it."""

    tenant: str
    effect: str
    confirmed: bool
    version: int
    digest: str
    by: str | None
    via: Literal["api", "update"]


class TurnDecision(Frozen):
    """An answer that came to a turn's workflow: it may be about an effect of that turn alone."""

    turn: str
    decision: Decision


DecisionAnswer = Literal[
    "accepted", "already_decided", "turn_aborted", "expired", "changed", "not_held", "not_found"
]
"""What became of an answer. All but ``accepted`` mean that it changed nothing."""


MAX_NOTE: Final = 1000
"""Characters that a person's note may have."""
RulingWord = Literal["applied", "not_applied", "undone", "stands"]
"""What a person found out about an effect that needed one."""


class Ruling(Frozen):
    """A person's word on an effect that needs one, as the ledger takes it.

    ``note`` says how they know; of an effect that stands it is shown to its user as the reason.
    """

    tenant: str
    effect: str
    word: RulingWord
    note: str = Field(min_length=1, max_length=MAX_NOTE)
    by: str
    via: Literal["api", "cli"]


class Nudge(Frozen):
    """The payload of the signal ``decided``: an effect to look at again. It decides nothing itself."""

    effect: str | None = None
