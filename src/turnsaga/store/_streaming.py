"""The text of a reply as it streams. One attempt writes it at a time; what an earlier one wrote is void."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from turnsaga.errors import StaleStep
from turnsaga.models import StepRef, TurnRef
from turnsaga.store import schema
from turnsaga.store._unit import Numbers, TurnUnit

__all__ = ["Writer", "append_text", "restart_step", "take_over"]


@dataclass(frozen=True)
class Writer:
    """An attempt that writes a step's reply; of two, the one that the server started later counts."""

    started: datetime
    run: str
    attempt: int

    def claim(self, step: int) -> str:
        """Return its claim to a step, as it is stored."""
        return f"{step}/{self._rank()}/{self.run}/{self.attempt}"

    def is_older(self, claim: str) -> bool:
        """Tell whether a claim to the same step is a later attempt's."""
        return (self._rank(), self.attempt) < (claim.split("/")[1], int(claim.split("/")[3]))

    def _rank(self) -> str:
        return f"{(self.started - schema.EPOCH) // timedelta(microseconds=1):020d}"


def append_text(
    connection: Connection, ref: StepRef, text: str, *, by: Writer | None = None, now: datetime
) -> bool:
    """Add text to the stream of events; False once the turn is fenced, and then nothing is added.

    Raises:
        StaleStep: a later attempt than ``by`` writes this step.
    """
    unit = TurnUnit.hold_running(
        connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now, Numbers(events=1)
    )
    if unit is None:
        return False
    if by is not None:
        take_over(unit, ref, by)
    unit.emit("text_delta", {"step": ref.step, "text": text})
    return True


def restart_step(
    connection: Connection, ref: StepRef, attempt: int, *, by: Writer | None = None, now: datetime
) -> bool:
    """Say in the stream that this step's text so far is void; False once the turn is fenced.

    Raises:
        StaleStep: a later attempt than ``by`` writes this step.
    """
    unit = TurnUnit.hold_running(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now)
    if unit is None:
        return False
    if by is None or not take_over(unit, ref, by):
        unit.emit("step_restarted", {"step": ref.step, "attempt": attempt})
    if by is not None:
        unit.set_turn(writer=by.claim(ref.step))
    return True


def take_over(unit: TurnUnit, ref: StepRef, by: Writer) -> bool:
    """Claim the step's text; if an earlier attempt has written some, that is void, and True is returned."""
    held, mine = unit.turn.writer, by.claim(ref.step)
    if held == mine:
        return False
    void = held is not None and held.startswith(f"{ref.step}/")
    if void and held is not None and by.is_older(held):
        raise StaleStep(ref.turn, ref.step)
    if void:
        unit.emit("step_restarted", {"step": ref.step, "attempt": by.attempt})
    unit.set_turn(writer=mine)
    return void
