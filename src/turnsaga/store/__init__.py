"""The ledger in SQL."""

from turnsaga.store._attention import RulingTaken
from turnsaga.store._commits import CommitOutcome
from turnsaga.store._deployment import EngineName, OpenTurn
from turnsaga.store._gate import Claim, Refreshed, Verdict
from turnsaga.store._holding import DecisionTaken
from turnsaga.store._payloads import load_object
from turnsaga.store._preparing import CallContext, NewEffect
from turnsaga.store._replies import NewCall, NewReply, StepContext, StoredCall, StoredReply
from turnsaga.store._rows import EffectRow, TurnRow, brief, plan_row, view
from turnsaga.store._settling import UndoOutcome, UndoRecorded
from turnsaga.store._streaming import Writer
from turnsaga.store._turns import NewTurn, Started
from turnsaga.store._undoing import UndoClaim, UndoVerdict
from turnsaga.store._views import EventPage
from turnsaga.store.sql import SqlStore

__all__ = [
    "CallContext",
    "Claim",
    "CommitOutcome",
    "DecisionTaken",
    "EffectRow",
    "EngineName",
    "EventPage",
    "NewCall",
    "NewEffect",
    "NewReply",
    "NewTurn",
    "OpenTurn",
    "Refreshed",
    "RulingTaken",
    "SqlStore",
    "Started",
    "StepContext",
    "StoredCall",
    "StoredReply",
    "TurnRow",
    "UndoClaim",
    "UndoOutcome",
    "UndoRecorded",
    "UndoVerdict",
    "Verdict",
    "Writer",
    "brief",
    "load_object",
    "plan_row",
    "view",
]
