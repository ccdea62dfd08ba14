"""The gate: claim an effect for one attempt, in the transaction that looks whether it may be sent.

An attempt that claims the row gets a new token. Nothing is prepared and no gate opens on a turn that is
fenced, none for an effect that is held, and none while another effect on the same identity or resource
isn't done with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection

from turnsaga import settle
from turnsaga.ledger import Event, State, advance
from turnsaga.models import CallRef, HeldFor, TurnRef
from turnsaga.store._blocking import Blocker, blocker_of, is_overtaken, must_yield
from turnsaga.store._payloads import dump
from turnsaga.store._preparing import CallContext, NewEffect, ask_context, context_of, linked, prepared
from turnsaga.store._rows import EffectRow, plan_row
from turnsaga.store._unit import Numbers, Taking, TurnUnit
from turnsaga.tools import CommitPolicy

__all__ = ["Claim", "Refreshed", "Verdict", "claim_commit", "draft_and_claim"]

_HELD: Final[frozenset[HeldFor]] = frozenset({"confirmation", "turn_end", "delay", "viewer"})


class Verdict(StrEnum):
    """What an attempt may do. ``OUTDATED``: prepare it anew, since it had to wait for another effect."""

    SEND = "send"
    ANSWERED = "answered"
    STORED = "stored"
    REPEATED = "repeated"
    HELD = "held"
    BUSY = "busy"
    OUTDATED = "outdated"
    FENCED = "fenced"


@dataclass(frozen=True)
class Claim:
    """The gate's answer. ``row`` is None only where nothing was prepared; ``blocker`` is set for BUSY."""

    verdict: Verdict
    row: EffectRow | None = None
    blocker: str | None = None


@dataclass(frozen=True)
class Refreshed:
    """An effect's request, prepared anew right before its gate."""

    request: Mapping[str, Any]
    shown_digest: str
    read_version: str | None


def draft_and_claim(
    connection: Connection,
    ref: CallRef,
    draft: Callable[[CallContext], NewEffect],
    *,
    now: datetime,
    gate: bool = True,
) -> Claim:
    """Read the call, draft its effect if it has none yet, and claim it: one transaction for all of it.

    Without ``gate`` it is only prepared. What ``draft`` raises is raised here, and nothing is written then.

    Raises:
        NotFound: the turn has no such call.
        KeyConflict: the key stands for other arguments.
    """
    taking = _taking(connection, ref, now, likely_new=True)
    asked = ask_context(connection, ref)
    unit, fenced = _held(taking)
    context = context_of(asked, ref)
    if context.effect is not None:
        return _claim(unit, ref, None, fenced=fenced, gate=gate)
    if fenced:
        return Claim(Verdict.FENCED)
    if context.result is not None:
        return Claim(Verdict.ANSWERED)
    return _claim_new(unit, ref, draft(context), gate=gate)


def claim_commit(
    connection: Connection,
    ref: CallRef,
    new: NewEffect | None,
    *,
    now: datetime,
    gate: bool = True,
    refreshed: Refreshed | None = None,
) -> Claim:
    """Prepare the call's effect if it has none yet, and open the gate: one transaction.

    ``new`` may be None once the call has its effect; ``refreshed`` answers OUTDATED. Nothing is prepared
    and no gate opens on a turn that is fenced. A claim that an earlier attempt left behind is taken over
    only where the downstream system honours the key; elsewhere the row becomes ``unknown``.

    Raises:
        KeyConflict: the key stands for other arguments.
    """
    taking = _taking(connection, ref, now, likely_new=new is not None)
    unit, fenced = _held(taking)
    return _claim(unit, ref, new, fenced=fenced, gate=gate, refreshed=refreshed)


def _taking(connection: Connection, ref: CallRef, now: datetime, *, likely_new: bool) -> Taking:
    turn = TurnRef(tenant=ref.tenant, turn=ref.turn)
    # A new effect is prepared and claimed: two events, and its place in the turn.
    new = int(likely_new)
    return Taking(connection, turn, now, Numbers(events=2 * new, seqs=new), running=True)


def _held(taking: Taking) -> tuple[TurnUnit, bool]:
    """Return the turn of a call, and whether it is fenced."""
    unit = taking.unit()
    return (taking.anyway().held(), True) if unit is None else (unit, False)


def _claim(
    unit: TurnUnit,
    ref: CallRef,
    new: NewEffect | None,
    *,
    fenced: bool,
    gate: bool,
    refreshed: Refreshed | None = None,
) -> Claim:
    found = linked(unit, ref)
    if found is None:
        return Claim(Verdict.FENCED) if fenced or new is None else _claim_new(unit, ref, new, gate=gate)
    row, repeated = found
    if repeated:
        return Claim(Verdict.REPEATED, row)
    if fenced and row.state in {State.PREPARED, State.RELEASED}:
        # The run that asks has to settle, whoever released the row.
        return Claim(Verdict.FENCED, row)
    if row.state is State.PREPARED:
        if row.held_for in _HELD or not gate:
            return Claim(Verdict.HELD, row)
        return _gate(unit, row, refreshed=refreshed)
    if row.state in {State.COMMITTING, State.UNKNOWN} and not row.owned:
        return _take_over(unit, row, fenced=fenced)
    return Claim(Verdict.STORED, row)


def _claim_new(unit: TurnUnit, ref: CallRef, new: NewEffect, *, gate: bool) -> Claim:
    # What touches no resource has no place to take first: its gate opens, or not, before it has a row.
    at_once = gate and not new.policy.holds and not new.resources
    row, repeated = prepared(unit, ref, new, opening=_opening if at_once else None)
    if repeated:
        return Claim(Verdict.REPEATED, row)
    if row.state is State.COMMITTING:
        return Claim(Verdict.SEND, row)
    if row.held_for is not None or not gate:
        return Claim(Verdict.HELD, row)
    return _gate(unit, row, is_new=True, touches_nothing=not new.resources)


def _gate(
    unit: TurnUnit,
    row: EffectRow,
    *,
    is_new: bool = False,
    touches_nothing: bool = False,
    refreshed: Refreshed | None = None,
) -> Claim:
    blocker = blocker_of(unit, row, touches_nothing=touches_nothing)
    if blocker is not None:
        return _kept_back(unit, row, blocker)
    if refreshed is not None:
        row = unit.amend(
            row,
            request=dump(dict(refreshed.request)),
            shown_digest=refreshed.shown_digest,
            read_version=refreshed.read_version,
            prepared_at=unit.now,
        )
    elif not is_new and _is_outdated(unit, row):
        # What was inserted in this very transaction was prepared a moment ago.
        return Claim(Verdict.OUTDATED, row)
    return Claim(Verdict.SEND, _claimed(unit, row, Event.GATE_OPENED))


def _is_outdated(unit: TurnUnit, row: EffectRow) -> bool:
    """Tell whether what the effect was prepared on has moved by effects that it had to come after.

    Where a person confirmed what was shown, that alone is sent, or nothing.
    """
    if row.policy == CommitPolicy.CONFIRMED or row.decision is not None:
        return False
    at_once = row.policy != CommitPolicy.TURN_END and row.delay_ms == 0
    return (at_once and row.held_for == "resource") or is_overtaken(unit, row)


def _kept_back(unit: TurnUnit, row: EffectRow, blocker: Blocker) -> Claim:
    if blocker.turn == row.turn and blocker.held_for == "turn_end":
        # It comes after an effect that this turn's end commits, so it is committed there, too.
        return Claim(Verdict.HELD, unit.note(row, "tool_held", held_for="turn_end"))
    if row.held_for is None:
        row = unit.note(row, "tool_held", held_for="resource")
    if blocker.turn != row.turn and must_yield(unit, row):
        error = f"not sent: this turn and another one wait for each other ({blocker.title})"
        return Claim(Verdict.STORED, unit.move(row, Event.DROPPED, held_for=None, error=error))
    return Claim(Verdict.BUSY, row, blocker.title)


def _take_over(unit: TurnUnit, row: EffectRow, *, fenced: bool) -> Claim:
    planned = plan_row(row, undo_given_up=False)
    if settle.resolution(planned, fenced=fenced, now=unit.now) is settle.Action.SEND_AGAIN:
        return Claim(Verdict.SEND, _claimed(unit, row, Event.CLAIMED_AGAIN))
    if row.state is State.COMMITTING:
        row = unit.move(
            row, Event.COMMIT_LOST, token=row.token + 1, error="an earlier attempt gave no answer"
        )
    return Claim(Verdict.STORED, row)


def _opening(unit: TurnUnit, row: EffectRow) -> Mapping[str, Any] | None:
    """Return what claims an effect that has no row yet; None if it has to wait for another one."""
    if blocker_of(unit, row, touches_nothing=True) is not None:
        return None
    state = advance(row.state, Event.GATE_OPENED)
    return {"state": state, "version": row.version + 1, **_claiming(unit, row)}


def _claimed(unit: TurnUnit, row: EffectRow, event: Event) -> EffectRow:
    return unit.move(row, event, quiet=row.state is State.COMMITTING, **_claiming(unit, row))


def _claiming(unit: TurnUnit, row: EffectRow) -> dict[str, Any]:
    return {
        "token": row.token + 1,
        "held_for": None,
        "error": None,
        "sends": row.sends + 1,
        "first_claim_at": row.first_claim_at or unit.now,
        "send_by": unit.now + timedelta(milliseconds=row.send_by_ms),
    }
