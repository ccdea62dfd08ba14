"""Turns, effects and events as people and clients see them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from turnsaga.ledger import State, TurnState
from turnsaga.models._refs import Frozen
from turnsaga.models._runs import HeldFor

__all__ = ["EffectView", "Settlement", "TurnEvent", "TurnView", "UndoOffer"]


class UndoOffer(Frozen):
    """Where an effect can be undone, until when, and what that costs."""

    href: str
    until: datetime | None = None
    cost: str | None = None


class EffectView(Frozen):
    """One effect as people and clients see it; ``data`` of every ``tool_*`` event.

    ``identity`` is the business identity, the same string as the vendor's record shows; ``order`` the
    place among the turn's commits; ``digest`` and ``expires_at`` what a confirmation must answer.
    """

    effect: str
    turn: str
    conversation: str
    tool: str
    identity: str | None
    key: str
    title: str
    summary: str
    state: State
    held_for: HeldFor | None
    needs_attention: bool
    digest: str
    expires_at: datetime | None
    undo: UndoOffer | None
    no_undo_reason: str | None
    error: str | None
    version: int
    order: int | None
    at: datetime


class Settlement(Frozen):
    """What became of every effect of an ended turn: lists of effect ids. Computed from the ledger."""

    at: datetime
    committed: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    compensated: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    compensation_failed: tuple[str, ...] = ()


class TurnView(Frozen):
    """One turn as the API shows it. ``settlement`` is None until the turn has ended."""

    turn: str
    conversation: str
    state: TurnState
    reason: str | None
    effects: tuple[EffectView, ...]
    settlement: Settlement | None


class TurnEvent(Frozen):
    """One event of a turn; ``number`` is contiguous from 1 in its turn."""

    turn: str
    number: int
    kind: str
    data: Mapping[str, Any]
    at: datetime
