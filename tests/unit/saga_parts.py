"""What a saga in memory is made of: tools, rows with the vendor's truth beside them, and attempts."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from turnsaga import settle
from turnsaga.ledger import State

__all__ = [
    "KEY_LIFE",
    "LANDING_WINDOW",
    "MAX_SENDS",
    "MAX_UNDOS",
    "NOBODY",
    "SEND_WITHIN",
    "Attempt",
    "Effect",
    "Tool",
]

SEND_WITHIN: Final = timedelta(seconds=2)
LANDING_WINDOW: Final = timedelta(seconds=3)
KEY_LIFE: Final = timedelta(seconds=12)
MAX_SENDS: Final = 3
MAX_UNDOS: Final = 2
NOBODY: Final = -1
"""The run of an attempt that no run waits for any more."""


@dataclass(frozen=True)
class Tool:
    """What a tool declares about repeats. ``undo`` is None for what can't be undone."""

    repeat: Literal["keyed", "own id", "once"] = "keyed"
    can_look_up: bool = False
    undo: Literal["keyed", "once"] | None = "keyed"
    job: bool = False


@dataclass(eq=False)
class Attempt:
    """One call in one process: it holds a token, sends once, and writes what it learned."""

    effect: "Effect"
    kind: Literal["commit", "undo"]
    token: int
    send_by: datetime
    run: int
    alive: bool = True
    sent: bool = False
    on_wire: bool = False
    landed: bool = False
    refused: bool = False


@dataclass(eq=False)
class Effect:
    """One row of the ledger, and beside it what is true at the vendor."""

    name: str
    tool: Tool
    state: State
    token: int = 0
    order: int | None = None
    owned: bool = False
    sends: int = 0
    answers: int = 0
    undos_begun: int = 0
    send_by: datetime | None = None
    first_claim: datetime | None = None
    was_committing: bool = False
    late: bool = False
    # The vendor's truth.
    applied: int = 0
    undone: int = 0
    job: Literal["none", "runs", "asked to cancel", "done", "cancelled"] = "none"
    known_from: datetime | None = None

    @property
    def standing(self) -> int:
        return self.applied - self.undone

    @property
    def wire_until(self) -> datetime | None:
        return None if self.send_by is None or self.answers >= self.sends else self.send_by + LANDING_WINDOW

    @property
    def row(self) -> settle.Row:
        spare = self.first_claim and self.first_claim + KEY_LIFE - SEND_WITHIN - LANDING_WINDOW
        return settle.Row(
            effect=self.name,
            state=self.state,
            order=self.order,
            owned=self.owned,
            reversible=self.tool.undo is not None,
            keyed=self.tool.repeat != "once",
            can_look_up=self.tool.can_look_up,
            key_dies_with_undo=self.tool.repeat == "own id",
            undo_given_up=self.undos_begun >= MAX_UNDOS + (self.state is State.COMMITTED),
            wire_until=self.wire_until,
            key_until=spare if self.tool.repeat == "keyed" else None,
            sends_left=MAX_SENDS - self.sends,
        )
