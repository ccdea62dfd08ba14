"""Held effects: what they wait for, people's answers, and how each of it ends."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, select

from turnsaga.errors import NotFound
from turnsaga.ledger import Event, State, TurnState
from turnsaga.models import Decision, DecisionAnswer, EffectRef, Principal
from turnsaga.store import schema
from turnsaga.store._prepared import Prepared
from turnsaga.store._rows import EffectRow, effect_row
from turnsaga.store._statements import PREPARED_OF_TURN, matches
from turnsaga.store._unit import TurnUnit

__all__ = ["ABORTED", "DecisionTaken", "decide", "due", "release_prepared"]

ABORTED: Final = "aborted: not sent, the turn was stopped first"
_REJECTED: Final = "rejected: not sent, the user said no"
_EXPIRED: Final = "expired: not sent, nobody confirmed it in time"
_CONFIRMED_WORD: Final = "confirmed"
_REJECTED_WORD: Final = "rejected"
_EXPIRED_WORD: Final = "expired"

_effects = schema.effects
_OWNER: Final = Prepared(
    select(_effects.c.turn, _effects.c.user).where(matches(_effects.c.tenant, _effects.c.effect))
)


@dataclass(frozen=True)
class DecisionTaken:
    """What became of an answer; ``first`` tells that it is the one that decided."""

    answer: DecisionAnswer
    first: bool
    row: EffectRow


def due(connection: Connection, ref: EffectRef, *, turn_ended: bool, now: datetime) -> tuple[EffectRow, bool]:
    """Let an effect go on whose wait is over, and return it; the second value tells that its turn is fenced.

    With ``turn_ended`` the stream is whole, so what was held for that is due. An effect that nobody
    confirmed within its window is released.
    """
    unit, row = TurnUnit.hold_effect(connection, ref, now)
    if row.state is State.PREPARED and not unit.turn.fenced:
        row = _go_on(unit, row, turn_ended=turn_ended)
    return row, unit.turn.fenced


def _go_on(unit: TurnUnit, row: EffectRow, *, turn_ended: bool) -> EffectRow:
    match row.held_for:
        case "confirmation" if row.expires_at is not None and unit.now >= row.expires_at:
            return _expired(unit, row)
        case "turn_end" if turn_ended:
            return _undelayed(unit, row)
        case "delay" if row.not_before is None or unit.now >= row.not_before:
            return unit.amend(row, held_for=None)
        case _:
            return row


def _undelayed(unit: TurnUnit, row: EffectRow, **decided: Any) -> EffectRow:  # noqa: ANN401
    """Take away what an effect was held for; its delay, if it has one, begins now."""
    if row.delay_ms and row.not_before is None:
        not_before = unit.now + timedelta(milliseconds=row.delay_ms)
        return unit.note(row, "tool_held", held_for="delay", not_before=not_before, **decided)
    return unit.amend(row, held_for=None, **decided)


def decide(
    connection: Connection,
    decision: Decision,
    *,
    now: datetime,
    owner: Principal | None = None,
    turn: str | None = None,
) -> DecisionTaken:
    """Take a person's answer about an effect that is held for it, if it is the first and still counts.

    It must name the version and the digest that were shown. The same answer again is accepted again and
    changes nothing; one that comes late, or to something else, says so and changes nothing.

    Raises:
        NotFound: there is no such effect, it isn't the owner's, or it isn't of this turn.
    """
    named = {"tenant_is": decision.tenant, "effect_is": decision.effect}
    found = _OWNER.run(connection, named).one_or_none()
    if found is None or (turn is not None and found.turn != turn):
        raise NotFound("effect", decision.effect)
    if owner is not None and (owner.tenant, owner.user) != (decision.tenant, found.user):
        raise NotFound("effect", decision.effect)
    ref = EffectRef(tenant=decision.tenant, turn=found.turn, effect=decision.effect)
    unit, row = TurnUnit.hold_effect(connection, ref, now)
    if row.decision is not None or row.state is not State.PREPARED:
        return _decided_before(unit, row, decision)
    if unit.turn.fenced or unit.turn.state is not TurnState.RUNNING:
        return DecisionTaken("turn_aborted", first=False, row=row)
    if row.held_for != "confirmation":
        return DecisionTaken("not_held", first=False, row=row)
    if row.expires_at is not None and now >= row.expires_at:
        return DecisionTaken("expired", first=False, row=_expired(unit, row))
    if (decision.version, decision.digest) != (row.version, row.shown_digest):
        return DecisionTaken("changed", first=False, row=row)
    word = _CONFIRMED_WORD if decision.confirmed else _REJECTED_WORD
    answer: dict[str, Any] = {
        "decision": word,
        "decided_at": now,
        "decided_by": decision.by,
        "decided_via": decision.via,
        "decided_version": row.version,
    }
    if decision.confirmed:
        row = _undelayed(unit, row, **answer)
    else:
        row = unit.move(row, Event.DROPPED, held_for=None, error=_REJECTED, **answer)
    return DecisionTaken("accepted", first=True, row=row)


def _decided_before(unit: TurnUnit, row: EffectRow, decision: Decision) -> DecisionTaken:
    """Answer what comes after a decision, or after the effect was released without one."""
    answer: DecisionAnswer
    word = _CONFIRMED_WORD if decision.confirmed else _REJECTED_WORD
    same = (row.decision, row.decided_version, row.shown_digest) == (word, decision.version, decision.digest)
    if row.decision == _EXPIRED_WORD:
        answer = "expired"
    elif row.state is State.RELEASED and row.decision != _REJECTED_WORD and unit.turn.fenced:
        answer = "turn_aborted"
    elif row.decision is None:
        answer = "not_held"
    else:
        answer = "accepted" if same else "already_decided"
    return DecisionTaken(answer, first=False, row=row)


def release_prepared(unit: TurnUnit) -> tuple[EffectRow, ...]:
    """Release what a turn has prepared and not sent, and return it: its fence is written in this transaction.

    So a question is withdrawn at once, whether a worker lives or not.
    """
    named = {"tenant_is": unit.turn.tenant, "turn_is": unit.turn.turn}
    return tuple(
        unit.move(effect_row(found), Event.DROPPED, held_for=None, error=ABORTED)
        for found in PREPARED_OF_TURN.run(unit.connection, named)
    )


def _expired(unit: TurnUnit, row: EffectRow) -> EffectRow:
    return unit.move(
        row, Event.DROPPED, held_for=None, decision=_EXPIRED_WORD, decided_at=unit.now, error=_EXPIRED
    )
