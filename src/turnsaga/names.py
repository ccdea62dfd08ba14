"""Names on the wire between clients, workflows and workers. Stored in histories: never renamed.

Any Temporal client in any language can do what ``TurnClient`` does with these: docs/temporal.md.
"""

from typing import Final

__all__ = [
    "ABORT",
    "COMPLETE",
    "CONFIRM",
    "CONVERSATION_ID",
    "DECIDE",
    "DECIDED",
    "DUE",
    "ENTER",
    "FENCE",
    "HAND_OVER",
    "LEDGER",
    "MODEL_REQUEST",
    "NEEDS_ATTENTION",
    "OWNED",
    "PROCEED",
    "RECOVER_TURN",
    "REJECT",
    "SETTLE",
    "SWEEP",
    "SWEEP_ACTIVITY",
    "TASK_QUEUE",
    "TURN_STATUS",
    "TURN_WORKFLOW",
    "UNDECIDED",
    "commit_activity",
    "compensate_activity",
    "lookup_activity",
    "prepare_activity",
    "read_activity",
]

TASK_QUEUE: Final = "turnsaga"

# Workflow types.
TURN_WORKFLOW: Final = "AgentTurn"
RECOVER_TURN: Final = "RecoverTurn"
SWEEP: Final = "Sweep"

# Of a turn's workflow: signals, updates and a query.
ABORT: Final = "abort"
DECIDED: Final = "decided"
PROCEED: Final = "proceed"
CONFIRM: Final = "confirm"
REJECT: Final = "reject"
LEDGER: Final = "ledger"

# Activities that only read or write the ledger.
FENCE: Final = "turn.fence"
COMPLETE: Final = "turn.complete"
UNDECIDED: Final = "turn.undecided"
ENTER: Final = "turn.enter"
SETTLE: Final = "turn.settle"
OWNED: Final = "turn.owned"
HAND_OVER: Final = "effect.hand_over"
DUE: Final = "effect.due"
DECIDE: Final = "effect.decide"
SWEEP_ACTIVITY: Final = "ledger.sweep"

# The deployment's model request.
MODEL_REQUEST: Final = "model.request"

# Search attributes: keyword, keyword, bool. No personal data: a codec doesn't encrypt them.
TURN_STATUS: Final = "TurnStatus"
CONVERSATION_ID: Final = "ConversationId"
NEEDS_ATTENTION: Final = "NeedsAttention"


def prepare_activity(tool: str) -> str:
    """Return the activity type that prepares a call of ``tool`` whose effect is held."""
    return f"{tool}.prepare"


def commit_activity(tool: str) -> str:
    """Return the activity type that commits a call of ``tool``, and prepares it if it isn't."""
    return f"{tool}.commit"


def compensate_activity(tool: str) -> str:
    """Return the activity type that undoes an effect of ``tool``."""
    return f"{tool}.compensate"


def lookup_activity(tool: str) -> str:
    """Return the activity type that asks what became of a lost call of ``tool``."""
    return f"{tool}.lookup"


def read_activity(tool: str) -> str:
    """Return the activity type that runs a read-only ``tool``."""
    return f"{tool}.read"
