"""What crosses a boundary: Temporal payloads, and the views that the API shows. Frozen pydantic models.

Payloads carry references and small results only. Messages, arguments, requests and receipts stay in the
ledger, so histories stay small and hold neither secrets nor what users wrote.
"""

from turnsaga.models._answers import (
    MAX_NOTE,
    Decision,
    DecisionAnswer,
    DecisionRequest,
    Nudge,
    Ruling,
    RulingWord,
    TurnDecision,
)
from turnsaga.models._refs import CallRef, EffectRef, Principal, StepRef, TurnRef, TurnStart
from turnsaga.models._runs import (
    AbortSignal,
    CallOutcome,
    CallPlan,
    Decided,
    DueRequest,
    EffectBrief,
    Entered,
    FenceAnswer,
    FenceRequest,
    HandOver,
    HeldFor,
    NextSteps,
    PlannedStep,
    Resolution,
    SettleRequest,
    StepPlan,
    TurnResult,
)
from turnsaga.models._views import EffectView, Settlement, TurnEvent, TurnView, UndoOffer

__all__ = [
    "MAX_NOTE",
    "AbortSignal",
    "CallOutcome",
    "CallPlan",
    "CallRef",
    "Decided",
    "Decision",
    "DecisionAnswer",
    "DecisionRequest",
    "DueRequest",
    "EffectBrief",
    "EffectRef",
    "EffectView",
    "Entered",
    "FenceAnswer",
    "FenceRequest",
    "HandOver",
    "HeldFor",
    "NextSteps",
    "Nudge",
    "PlannedStep",
    "Principal",
    "Resolution",
    "Ruling",
    "RulingWord",
    "SettleRequest",
    "Settlement",
    "StepPlan",
    "StepRef",
    "TurnDecision",
    "TurnEvent",
    "TurnRef",
    "TurnResult",
    "TurnStart",
    "TurnView",
    "UndoOffer",
]
