"""How a tool is declared, checked and registered.

A tool is declared once: its arguments as a pydantic model, the functions that prepare, commit, look up
and undo it, and what the downstream system promises about repeats. ``Tools`` refuses what contradicts
itself and says what to do, before any call runs. A tool that promises nothing is taken to be
irreversible and unkeyed: it fails closed.
"""

from turnsaga.tools._declare import (
    AVAILABLE_POLICIES,
    Call,
    CommitPolicy,
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
from turnsaga.tools._policies import ToolCard, check_policies, commits_at_once
from turnsaga.tools._registry import Tools, parse_arguments, sentence

__all__ = [
    "AVAILABLE_POLICIES",
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
    "Prepared",
    "ReadTool",
    "Repeat",
    "Running",
    "SearchResult",
    "Tool",
    "ToolCard",
    "Tools",
    "Undone",
    "check_policies",
    "commits_at_once",
    "parse_arguments",
    "sentence",
]
