"""Logs: one line an event on stderr, JSON in production and readable in development."""

from turnsaga.logs._configure import configure, drop_in_replay
from turnsaga.logs._discretion import without_texts
from turnsaga.logs._engine import forward_engine_logs, leave_after

__all__ = ["configure", "drop_in_replay", "forward_engine_logs", "leave_after", "without_texts"]
