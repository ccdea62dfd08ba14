"""Names on the wire between clients, workflows and workers. Stored in histories: never renamed.

Any Temporal client in any language can do what ``TurnClient`` does with these: docs/temporal.md.
"""

from typing import Final

__all__ = [
    "ABORT",
    "COMPLETE",
    "CONVERSATION_ID",
    "FENCE",
    "HAND_OVER",
    "LEDGER",
    "MODEL_REQUEST",
    "NEEDS_ATTENTION",
    "OWNED",
    "RECOVER_TURN",
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
    "read_activity",
]

TASK_QUEUE: Final = "turnsaga"

# Workflow types.
TURN_WORKFLOW: Final = "AgentTurn"
RECOVER_TURN: Final = "RecoverTurn"
SWEEP: Final = "Sweep"

# Of a turn's workflow: a signal and a query.
ABORT: Final = "abort"
LEDGER: Final = "ledger"

# Activities that only read or write the ledger.
FENCE: Final = "turn.fence"
COMPLETE: Final = "turn.complete"
UNDECIDED: Final = "turn.undecided"
SETTLE: Final = "turn.settle"
OWNED: Final = "turn.owned"
HAND_OVER: Final = "effect.hand_over"
SWEEP_ACTIVITY: Final = "ledger.sweep"

# The deployment's model request.
MODEL_REQUEST: Final = "model.request"

# Search attributes: keyword, keyword, bool. No personal data: a codec doesn't encrypt them.
TURN_STATUS: Final = "TurnStatus"
CONVERSATION_ID: Final = "ConversationId"
NEEDS_ATTENTION: Final = "NeedsAttention"


def commit_activity(tool: str) -> str:
    """Return the activity type that prepares and commits a call of ``tool``."""
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
