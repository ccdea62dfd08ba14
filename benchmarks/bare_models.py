"""What the bare saga's workflow and activities hand each other: plain dataclasses, as in the samples."""

from dataclasses import dataclass

__all__ = ["Asked", "BareTurn", "Booked"]


@dataclass
class BareTurn:
    """A turn's start."""

    message: str
    effects: int


@dataclass
class Asked:
    """A model request; ``results`` is empty in the first."""

    message: str
    effects: int
    results: str


@dataclass
class Booked:
    """One call of the model."""

    item: str
