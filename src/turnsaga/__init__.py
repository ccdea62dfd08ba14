"""Durable sagas for agent turns: calls that can be aborted, compensated and accounted for, on Temporal."""

from turnsaga._version import __version__
from turnsaga.client import Aborted, TurnClient
from turnsaga.errors import (
    ChangedSince,
    NotApplied,
    OutcomeUnknown,
    StillRunning,
    TurnSagaError,
    UndoRefused,
)
from turnsaga.ledger import State, TurnState
from turnsaga.models import EffectView, Principal, TurnEvent, TurnResult, TurnStart, TurnView
from turnsaga.plugin import TurnSagaPlugin
from turnsaga.saga import SagaOptions, TurnSaga
from turnsaga.store import SqlStore
from turnsaga.tools import (
    Call,
    Committed,
    EffectTool,
    Found,
    Keyed,
    Limits,
    Missing,
    Once,
    Prepared,
    ReadTool,
    Running,
    Tools,
    Undone,
)

__all__ = [
    "Aborted",
    "Call",
    "ChangedSince",
    "Committed",
    "EffectTool",
    "EffectView",
    "Found",
    "Keyed",
    "Limits",
    "Missing",
    "NotApplied",
    "Once",
    "OutcomeUnknown",
    "Prepared",
    "Principal",
    "ReadTool",
    "Running",
    "SagaOptions",
    "SqlStore",
    "State",
    "StillRunning",
    "Tools",
    "TurnClient",
    "TurnEvent",
    "TurnResult",
    "TurnSaga",
    "TurnSagaError",
    "TurnSagaPlugin",
    "TurnStart",
    "TurnState",
    "TurnView",
    "UndoRefused",
    "Undone",
    "__version__",
]
