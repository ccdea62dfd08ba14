"""The lending desk's own workers; the name is also that of a package in turnsaga's repository."""

from workers.desk import desk_worker

__all__ = ["desk_worker"]
