"""The lending desk's own activities; the name is also that of a package in turnsaga's repository."""

from activities.clerk import Clerk
from activities.shelf import Shelf

__all__ = ["Clerk", "Shelf"]
