"""What all phases of a tool need."""

import traceback
from datetime import UTC, datetime, timedelta
from typing import Final

from structlog.contextvars import bind_contextvars
from temporalio.exceptions import ApplicationErrorCategory

from turnsaga.keys import effect_id
from turnsaga.models import CallRef
from turnsaga.store import EffectRow
from turnsaga.tools import Call

__all__ = [
    "EXPECTED",
    "INSIST",
    "MARGIN",
    "STILL_RUNNING",
    "call_before",
    "call_for",
    "details",
    "ms",
    "now",
    "said",
    "speak_of",
    "until",
]

MARGIN: Final = timedelta(seconds=10)
"""What an attempt gets beside its call, for the ledger."""

INSIST: Final = timedelta(seconds=60)
"""How long an outcome is tried to be written while the ledger is away: it is known nowhere else."""

STILL_RUNNING: Final = timedelta(seconds=1)
"""After how long a system is asked again that says that it is still at it."""

EXPECTED: Final = ApplicationErrorCategory.BENIGN
"""The category of errors that the protocol foresees: no alarm in logs and metrics."""


def now() -> datetime:
    """Return this instant."""
    return datetime.now(UTC)


def said(error: Exception) -> str:
    """Return what an error of a tool says; its class is the tool's own, and may fail even at that."""
    try:
        reason = getattr(error, "reason", None)
        text = reason if isinstance(reason, str) else str(error)
    except Exception:  # noqa: BLE001  # its own code may raise anything
        text = ""
    return text or type(error).__name__


def details(error: Exception) -> str:
    """Return where an error was raised and what it says, for a log line at DEBUG, and within bounds.

    A renderer that is given the error itself may take minutes over one of some megabytes, in which nothing
    else of its worker goes on, and the outcome isn't stored yet.
    """
    places = "".join(traceback.format_tb(error.__traceback__))
    return f"{places[-4000:]}{type(error).__name__}: {said(error)[:1000]}"


def ms(span: timedelta) -> int:
    """Return a duration in whole milliseconds."""
    return int(span.total_seconds() * 1000)


def until(instant: datetime | None) -> timedelta:
    """Return how long to wait before asking again: not long before it can be decided, nor too often."""
    left = timedelta(0) if instant is None else instant - now()
    return min(max(left, timedelta(milliseconds=250)), timedelta(seconds=2))


def speak_of(row: EffectRow, key: str) -> None:
    """Bind the effect to every line that this attempt logs from here on, whoever writes it.

    An attempt has a context of its own, which ends with it; so Temporal's own line about its failure says
    whose it is, too.
    """
    bind_contextvars(turn=row.turn, effect=row.effect, key=key)


def call_for(row: EffectRow, key: str, within: timedelta, *, send_by: datetime | None = None) -> Call:
    """Return what a tool's function is told about an effect that has its row."""
    left = timedelta(milliseconds=row.send_by_ms) if send_by is None else send_by - now()
    return Call(
        tenant=row.tenant,
        user=row.user,
        turn=row.turn,
        effect=row.effect,
        key=key,
        effect_key=row.key,
        remaining=within,
        send_within=min(within, max(left, timedelta(0))),
    )


def call_before(ref: CallRef, user: str, key: str, within: timedelta) -> Call:
    """Return what a tool's function is told before there is a row, or where there is none."""
    return Call(
        tenant=ref.tenant,
        user=user,
        turn=ref.turn,
        effect=effect_id(turn=ref.turn, key=key),
        key=key,
        effect_key=key,
        remaining=within,
    )
