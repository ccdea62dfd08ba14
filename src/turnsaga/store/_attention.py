"""What needs a person: the queue of it, and the words of those who looked.

A person is asked where nothing else can tell what happened outside, so their word is taken as it is. It
is one transition among the others: compare-and-set, with its event and its record in one transaction,
under a new token, so that whatever attempt is still under way writes nothing afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import Connection, bindparam, func, insert, select, text

from turnsaga.errors import NotFound
from turnsaga.ledger import Event, State
from turnsaga.models import EffectRef, EffectView, Ruling, RulingWord
from turnsaga.store import schema
from turnsaga.store._prepared import Prepared
from turnsaga.store._rows import EffectRow, effect_row, view
from turnsaga.store._statements import matches
from turnsaga.store._unit import TurnUnit

__all__ = ["RulingTaken", "attention", "count_attention", "resolve"]

_NOT_DONE: Final = "a person looked: it was not done"
_EVENTS: Final[Mapping[tuple[State, RulingWord], Event]] = {
    (State.UNKNOWN, "applied"): Event.RESOLVED_APPLIED,
    (State.UNKNOWN, "not_applied"): Event.RESOLVED_NOT_APPLIED,
    (State.COMPENSATION_FAILED, "undone"): Event.RESOLVED_UNDONE,
    (State.COMPENSATION_FAILED, "stands"): Event.RESOLVED_STANDS,
}

_effects, _resolutions = schema.effects, schema.resolutions
_TURN: Final = Prepared(select(_effects.c.turn).where(matches(_effects.c.tenant, _effects.c.effect)))
_QUEUE: Final = Prepared(
    select(_effects)
    .where(matches(_effects.c.tenant) & text(schema.NEEDS_ATTENTION))
    .order_by(_effects.c.at, _effects.c.effect)
    .limit(bindparam("most"))
)
_COUNT: Final = Prepared(
    select(func.count().label("waiting")).select_from(_effects).where(text(schema.NEEDS_ATTENTION))
)
_WORDS: Final = Prepared(
    select(func.count().label("words")).where(matches(_resolutions.c.tenant, _resolutions.c.effect))
)
_RECORD: Final = Prepared(insert(_resolutions))


@dataclass(frozen=True)
class RulingTaken:
    """What became of a person's word; ``reason`` says why it changed nothing, where it was refused."""

    answer: Literal["accepted", "already_resolved", "not_resolvable"]
    row: EffectRow
    reason: str = ""


def attention(connection: Connection, tenant: str, *, limit: int) -> tuple[EffectView, ...]:
    """Return a tenant's effects that need a person, those first that have waited longest."""
    found = _QUEUE.run(connection, {"tenant_is": tenant, "most": limit})
    return tuple(view(effect_row(row)) for row in found)


def count_attention(connection: Connection) -> int:
    """Return how many effects need a person, of all tenants."""
    [row] = _COUNT.run(connection, {})
    return int(row.waiting)


def resolve(connection: Connection, ruling: Ruling, *, now: datetime) -> RulingTaken:
    """Take a person's word on an effect that needs one.

    The same word again is accepted again and changes nothing. What was found applied after its turn was
    stopped is a late landing like any other: the sweeper undoes it, or leaves it standing.

    Raises:
        NotFound: the tenant has no such effect.
    """
    named = {"tenant_is": ruling.tenant, "effect_is": ruling.effect}
    found = _TURN.run(connection, named).one_or_none()
    if found is None:
        raise NotFound("effect", ruling.effect)
    ref = EffectRef(tenant=ruling.tenant, turn=found.turn, effect=ruling.effect)
    unit, row = TurnUnit.hold_effect(connection, ref, now)
    event = _EVENTS.get((row.state, ruling.word))
    if not row.needs_attention or event is None:
        return _refused(row, ruling)
    if event is Event.RESOLVED_NOT_APPLIED and row.wire_until is not None and now < row.wire_until:
        # The same rule as for a look-up that finds nothing: believed now, the request could land next.
        return RulingTaken(
            "not_resolvable", row, f"its request can still land until {row.wire_until.isoformat()}; ask then"
        )
    state = row.state
    row = unit.move(
        row,
        event,
        token=row.token + 1,
        owned=False,
        resolution=ruling.word,
        **_changes(unit, row, event, ruling),
    )
    if row.halts and event in {Event.RESOLVED_UNDONE, Event.RESOLVED_STANDS}:
        # Those that were committed before it have waited for this; the sweeper goes on with them.
        unit.set_turn(follow=True)
    [spoken] = _WORDS.run(connection, named)
    _RECORD.run(
        connection,
        {
            "tenant": ruling.tenant,
            "effect": ruling.effect,
            "number": spoken.words + 1,
            "state": state,
            "word": ruling.word,
            "note": ruling.note,
            "by": ruling.by,
            "via": ruling.via,
            "at": now,
        },
    )
    return RulingTaken("accepted", row)


def _changes(unit: TurnUnit, row: EffectRow, event: Event, ruling: Ruling) -> dict[str, Any]:
    match event:
        case Event.RESOLVED_APPLIED:
            # It was answered for, as by a look-up; but nobody has a receipt of it.
            return {"commit_order": unit.take_order(), "answers": row.answers + 1, "error": None}
        case Event.RESOLVED_NOT_APPLIED:
            return {"error": _NOT_DONE}
        case Event.RESOLVED_STANDS:
            return {"error": None, "no_undo_reason": ruling.note}
        case _:
            return {"error": None}


def _refused(row: EffectRow, ruling: Ruling) -> RulingTaken:
    """Answer a word that fits nothing: it was spoken before, another one was, or nobody is asked."""
    if row.resolution == ruling.word:
        return RulingTaken("accepted", row)
    if row.resolution is not None and not row.needs_attention:
        return RulingTaken("already_resolved", row, f"it was resolved as {row.resolution!r} before")
    if row.needs_attention:
        return RulingTaken("not_resolvable", row, f"{ruling.word!r} says nothing of that")
    return RulingTaken("not_resolvable", row, "it waits for nobody's word")
