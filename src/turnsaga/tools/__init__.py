"""How a tool is declared, checked and registered.

A tool is declared once: its arguments as a pydantic model, the functions that prepare, commit, look up
and undo it, and what the downstream system promises about repeats. ``Tools`` refuses what contradicts
itself and says what to do, before any call runs. A tool that promises nothing is taken to be
irreversible and unkeyed: it fails closed.
"""

from turnsaga.tools._declare import (
    Call,
    Committed,
    EffectTool,
    Found,
    JsonObject,
    Keyed,
    Limits,
    Missing,
    Once,
    Prepared,
    ReadTool,
    Repeat,
    Running,
    SearchResult,
    Tool,
    Undone,
)
from turnsaga.tools._policies import (
    CommitPolicy,
    Policy,
    ToolCard,
    call_policy,
    check_policies,
    loosened,
)
from turnsaga.tools._registry import REPEAT, Tools, card_of, parse_arguments, sentence, wants_repeat

__all__ = [
    "REPEAT",
    "Call",
    "CommitPolicy",
    "Committed",
    "EffectTool",
    "Found",
    "JsonObject",
    "Keyed",
    "Limits",
    "Missing",
    "Once",
    "Policy",
    "Prepared",
    "ReadTool",
    "Repeat",
    "Running",
    "SearchResult",
    "Tool",
    "ToolCard",
    "Tools",
    "Undone",
    "call_policy",
    "card_of",
    "check_policies",
    "loosened",
    "parse_arguments",
    "sentence",
    "wants_repeat",
]
