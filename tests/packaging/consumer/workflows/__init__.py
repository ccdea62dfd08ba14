"""The lending desk's own workflows; the name is also that of a package in turnsaga's repository."""

from workflows.lending import LendingTurn

__all__ = ["LendingTurn"]
