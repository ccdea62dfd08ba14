"""What a vendor's word proves about what the ledger says. Pure.

A look-up by key proves that an effect was applied once, not that it still stands: PAY finds a charge after
its refund, and a CRM's log keeps the creation of a record that is gone. So what the ledger calls undone is
proved by ``check_undone`` alone, or by a look-up that finds nothing at all. What proves neither is
``CANT_BE_ASKED``, and never agreement.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from turnsaga.ledger import State

__all__ = ["OPEN", "Said", "Verdict", "judge", "remedy"]


class Said(StrEnum):
    """What a vendor says of one effect."""

    STANDS = "stands"
    APPLIED = "found"
    GONE = "found, and undone or removed since"
    MISSING = "not found"
    TOO_EARLY = "not found yet"
    RUNNING = "still at it"
    NOTHING = ""
    SILENT = "not reached"


class Verdict(StrEnum):
    """How ledger and vendor compare."""

    AGREES = "agrees"
    DIFFERS = "differs"
    CANT_BE_ASKED = "cant_be_asked"
    OPEN = "open"
    UNREACHABLE = "unreachable"


OPEN: Final = frozenset({State.PREPARED, State.COMMITTING, State.ACCEPTED, State.UNKNOWN, State.COMPENSATING})
"""States in which the ledger claims nothing of the vendor yet."""

_APPLIED: Final = frozenset({State.COMMITTED, State.STANDING, State.COMPENSATION_FAILED})
_NEVER: Final = frozenset({State.FAILED, State.RELEASED})

_IF_APPLIED: Final[Mapping[Said, Verdict]] = MappingProxyType(
    {
        Said.STANDS: Verdict.AGREES,
        Said.APPLIED: Verdict.AGREES,
        Said.GONE: Verdict.DIFFERS,
        Said.MISSING: Verdict.DIFFERS,
        Said.RUNNING: Verdict.CANT_BE_ASKED,
    }
)
_IF_UNDONE: Final[Mapping[Said, Verdict]] = MappingProxyType(
    {
        Said.STANDS: Verdict.DIFFERS,
        # It was applied: nobody doubts that. Whether it was undone this look-up can't tell.
        Said.APPLIED: Verdict.CANT_BE_ASKED,
        Said.GONE: Verdict.AGREES,
        Said.MISSING: Verdict.AGREES,
        Said.RUNNING: Verdict.CANT_BE_ASKED,
    }
)
_IF_NEVER: Final[Mapping[Said, Verdict]] = MappingProxyType(
    {
        Said.STANDS: Verdict.DIFFERS,
        Said.APPLIED: Verdict.DIFFERS,
        # It was applied against the ledger's word, and nothing of it is left.
        Said.GONE: Verdict.AGREES,
        Said.MISSING: Verdict.AGREES,
        Said.RUNNING: Verdict.DIFFERS,
    }
)


def judge(state: State, said: Said) -> Verdict:
    """Return how the ledger's state and the vendor's word compare."""
    if said is Said.SILENT:
        return Verdict.UNREACHABLE
    if state in OPEN:
        return Verdict.OPEN
    if said in {Said.NOTHING, Said.TOO_EARLY}:
        return Verdict.CANT_BE_ASKED
    if state in _APPLIED:
        return _IF_APPLIED[said]
    return _IF_NEVER[said] if state in _NEVER else _IF_UNDONE[said]


def remedy(state: State, verdict: Verdict, system: str) -> str:
    """Return what to do about a comparison; empty where there is nothing to do."""
    if verdict is Verdict.UNREACHABLE:
        return f"see turnsaga doctor about {system!r}, and verify again"
    if verdict is Verdict.OPEN:
        if state is State.UNKNOWN:
            return "--fix writes the vendor's answer down where it has one"
        return "its turn goes on with it; see turnsaga turns show"
    if verdict is not Verdict.DIFFERS:
        return ""
    if state is State.COMPENSATION_FAILED:
        return f"somebody has undone it at {system!r}: a person decides, the ledger keeps what it says"
    if state in _APPLIED:
        return (
            f"find out who removed it at {system!r}, and whether it is to be done again in a new turn; "
            "the ledger keeps what it says"
        )
    return (
        f"find out who did it at {system!r}, and undo it there by hand if it isn't meant to stand; "
        "the ledger keeps what it says"
    )
