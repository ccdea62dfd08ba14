"""``turnsaga doctor``: what is asked of a deployment's connections, and what to do about each answer."""

from turnsaga.cli._doctor._examine import examine
from turnsaga.cli._doctor._running import Checked, run_checks, worst

__all__ = ["Checked", "examine", "run_checks", "worst"]
