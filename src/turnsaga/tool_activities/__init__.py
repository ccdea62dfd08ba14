"""The activities of each registered tool: ``<tool>.commit``, ``.lookup``, ``.compensate`` and ``.read``.

Each attempt begins by asking the ledger what it may do, and ends by writing there what it learned. What
it returns to the workflow is a courtesy: the ledger decides.
"""

from turnsaga.tool_activities._plans import call_plan
from turnsaga.tool_activities._registry import ToolActivities

__all__ = ["ToolActivities", "call_plan"]
