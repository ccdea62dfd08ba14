"""The outcome of a commit, and looking up what was lost.

A token that is no longer current writes nothing, with one exception: a definite "applied" is evidence for
a row that is ``unknown``.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from turnsaga.errors import StaleWrite
from turnsaga.ledger import Event, State
from turnsaga.models import EffectRef, TurnRef
from turnsaga.store._payloads import dump_outcome, dump_receipt
from turnsaga.store._rows import EffectRow
from turnsaga.store._unit import Numbers, TurnUnit

__all__ = ["CommitOutcome", "begin_lookup", "drop", "keep_open", "record_commit", "record_lookup"]


@dataclass(frozen=True)
class CommitOutcome:
    """What an attempt learned: applied (with a receipt), proved not applied, or nothing.

    Of "nothing" there are kinds: ``running``, the system said that it is still at it; ``spent``, another
    request would get the same answer; ``going_on_until``, the call itself can't be stopped and may send
    until then.
    """

    applied: bool | None
    receipt: Mapping[str, Any] | None = None
    result: object = None
    error: str | None = None
    running: bool = False
    spent: bool = False
    going_on_until: datetime | None = None


def drop(connection: Connection, ref: EffectRef, reason: str, *, now: datetime) -> EffectRow:
    """Release an effect that was prepared and is not to be sent; any other state is left as it is."""
    unit, row = TurnUnit.hold_effect(connection, ref, now, Numbers(events=1))
    if row.state is not State.PREPARED:
        return row
    return unit.move(row, Event.DROPPED, held_for=None, error=reason)


def record_commit(
    connection: Connection,
    ref: EffectRef,
    token: int,
    outcome: CommitOutcome,
    *,
    now: datetime,
    claimed: EffectRow | None = None,
) -> EffectRow:
    """Write what the attempt that holds ``token`` learned; a stale token writes only evidence.

    ``claimed`` is the row as its claim left it: as long as nobody has moved it, it needn't be read again.
    """
    turn = TurnRef(tenant=ref.tenant, turn=ref.turn)
    unit = TurnUnit.hold(connection, turn, now, Numbers(events=1, orders=int(bool(outcome.applied))))
    if claimed is not None:
        with suppress(StaleWrite):
            return _learned(unit, claimed, token, outcome)
    return _learned(unit, unit.effect(ref.effect), token, outcome)


def _learned(unit: TurnUnit, row: EffectRow, token: int, outcome: CommitOutcome) -> EffectRow:
    if row.state is State.UNKNOWN and outcome.applied:
        return _committed(unit, row, Event.EVIDENCE_ARRIVED, outcome)
    if row.state is not State.COMMITTING or row.token != token:
        return row
    if outcome.applied:
        return _committed(unit, row, Event.COMMIT_CONFIRMED, outcome)
    if outcome.applied is None:
        return unit.move(
            row,
            Event.COMMIT_LOST,
            token=row.token + 1,
            error=outcome.error,
            # The attempt had until now, at least, to send.
            send_by=max(row.send_by or unit.now, outcome.going_on_until or unit.now),
            max_sends=_sends_allowed(row, outcome, unit.now),
        )
    # This attempt is proved not applied. One whose answer never came may have been, or be so later: a
    # refusal settles the effect only if no other attempt passed the gate.
    if row.unanswered > 1:
        return unit.move(
            row, Event.COMMIT_LOST, token=row.token + 1, answers=row.answers + 1, error=outcome.error
        )
    return unit.move(row, Event.COMMIT_REFUSED, answers=row.answers + 1, error=outcome.error)


def _sends_allowed(row: EffectRow, outcome: CommitOutcome, now: datetime) -> int:
    if outcome.spent:
        return row.sends
    # Whose request is being worked on is asked again as long as an outcome is looked for at all.
    since = row.first_claim_at or now
    if outcome.running and now < since + timedelta(milliseconds=row.call_plan.resolve_ms):
        return row.max_sends + 1
    return row.max_sends


def keep_open(connection: Connection, ref: EffectRef, until: datetime, *, now: datetime) -> None:
    """Have it known that a request of this effect can still leave until then."""
    unit, row = TurnUnit.hold_effect(connection, ref, now, Numbers(events=1))
    if row.state in {State.COMMITTING, State.UNKNOWN} and row.send_by is not None and row.send_by < until:
        unit.amend(row, send_by=until)


def begin_lookup(connection: Connection, ref: EffectRef, *, now: datetime) -> EffectRow:
    """Take the claim away from whatever attempt holds it, so that the look-up's answer is the latest word."""
    unit, row = TurnUnit.hold_effect(connection, ref, now, Numbers(events=1))
    if row.state is State.COMMITTING:
        return unit.move(row, Event.COMMIT_LOST, token=row.token + 1, error="no answer; being looked up")
    return row


def record_lookup(
    connection: Connection,
    ref: EffectRef,
    token: int,
    found: CommitOutcome | None,
    *,
    asked_at: datetime,
    now: datetime,
) -> EffectRow:
    """Write a look-up's answer. ``found`` is None for "not found".

    "Not found" settles the effect only if it was asked once no request could land any more; until then
    the row stays ``unknown``.
    """
    unit, row = TurnUnit.hold_effect(connection, ref, now, Numbers(events=1))
    if row.state is not State.UNKNOWN or row.token != token:
        return row
    if found is not None:
        return _committed(unit, row, Event.FOUND_APPLIED, found)
    if row.wire_until is not None and asked_at < row.wire_until:
        return row
    return unit.move(
        row, Event.PROVED_NOT_APPLIED, owned=False, error="looked up: not applied, and it can't be any more"
    )


def _committed(unit: TurnUnit, row: EffectRow, event: Event, outcome: CommitOutcome) -> EffectRow:
    committed = unit.move(
        row,
        event,
        token=row.token + 1,
        commit_order=unit.turn.next_order,
        answers=row.answers + 1,
        owned=False,
        error=None,
        receipt=dump_receipt({} if outcome.receipt is None else outcome.receipt),
        result=None if outcome.result is None else dump_outcome(outcome.result),
    )
    unit.take_order()
    return committed
