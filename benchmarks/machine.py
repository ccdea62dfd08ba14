"""What is told of the machine beside each figure."""

import os
from typing import Any

__all__ = ["load"]


def load() -> list[float]:
    """Return the machine's load averages: a run on a busy machine says so."""
    found: Any = os.getloadavg()
    return [round(value, 2) for value in found]
