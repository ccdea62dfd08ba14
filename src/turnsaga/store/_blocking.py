"""What keeps a gate shut: another effect on the same business identity, or an earlier one on a resource."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Label, bindparam, delete, func, insert, literal_column, select

from turnsaga.ledger import CLOSED, IN_DOUBT, State
from turnsaga.store import schema
from turnsaga.store._postgres import lock_names
from turnsaga.store._prepared import Prepared, Row, Rows
from turnsaga.store._rows import EffectRow
from turnsaga.store._statements import matches
from turnsaga.store._unit import TurnUnit
from turnsaga.store.schema import one_of

__all__ = ["Blocker", "blocker_of", "enqueue", "is_overtaken", "must_yield"]

_effects, _turns, _resources = schema.effects, schema.turns, schema.resources
_LAST_EPOCH: Final = Prepared(
    select(func.max(_resources.c.epoch)).where(
        matches(_resources.c.tenant, _resources.c.system, _resources.c.resource)
    )
)
_ADD_PLACE: Final = Prepared(insert(_resources))
_PLACES: Final = Prepared(
    select(_resources.c.system, _resources.c.resource, _resources.c.epoch)
    .where(matches(_resources.c.tenant, _resources.c.effect))
    .order_by(_resources.c.system, _resources.c.resource)
)
_SAME_IDENTITY: Final = Prepared(
    select(_effects.c.title, _effects.c.turn, _effects.c.held_for)
    .where(
        matches(_effects.c.tenant, _effects.c.system, _effects.c.identity)
        & (_effects.c.effect != bindparam("effect_is"))
        & one_of(_effects.c.state, schema.UNSETTLED)
    )
    .limit(1)
)


_FARTHEST: Final = 64
"""Turns that are looked at for a circle of waits; a longer one ends by its bounds."""


def _of_effect(column: Column[Any]) -> Label[Any]:
    """Return a column of a place's effect. Not by a join: see ``_BEFORE``."""
    effect = (_effects.c.tenant == _resources.c.tenant) & (_effects.c.effect == _resources.c.effect)
    return select(column).where(effect).correlate(_resources).scalar_subquery().label(column.name)


def _of_turn(column: Column[Any]) -> Label[Any]:
    turn = (_turns.c.tenant == _resources.c.tenant) & (_turns.c.turn == _resources.c.turn)
    found = select(column).where(turn).correlate(_resources).scalar_subquery()
    return found.label(f"turn_{column.name}")


# Of each place alone, and without joins: as long as Postgres knows nothing of how many rows there are, it
# takes one way through a join for as good as any other, also one that reads every row of a tenant.
_BEFORE: Final = Prepared(
    select(
        _resources.c.turn,
        _of_effect(_effects.c.title),
        _of_effect(_effects.c.state),
        _of_effect(_effects.c.held_for),
        _of_effect(_effects.c.at),
        _of_turn(_turns.c.state),
        _of_turn(_turns.c.created_at),
    )
    .where(
        matches(_resources.c.tenant, _resources.c.system, _resources.c.resource)
        & (_resources.c.epoch < bindparam("epoch_is"))
    )
    .order_by(_resources.c.epoch)
)
_DROP_PLACES: Final = Prepared(
    delete(_resources).where(
        matches(_resources.c.tenant, _resources.c.system, _resources.c.resource)
        & (_resources.c.epoch < bindparam("epoch_is"))
        & (_resources.c.turn != bindparam("turn_is"))
    )
)
_WAITING: Final = Prepared(
    select(_effects.c.effect).where(
        matches(_effects.c.tenant, _effects.c.turn)
        & (_effects.c.state == literal_column("'prepared'"))
        & (_effects.c.held_for == literal_column("'resource'"))
    )
)


@dataclass(frozen=True)
class _Place:
    """An effect's place in the order on one resource."""

    system: str
    resource: str
    epoch: int

    def named(self, tenant: str) -> dict[str, Any]:
        return {
            "tenant_is": tenant,
            "system_is": self.system,
            "resource_is": self.resource,
            "epoch_is": self.epoch,
        }


@dataclass(frozen=True)
class Blocker:
    """An effect that another one has to wait for."""

    title: str
    turn: str
    held_for: str | None


def enqueue(unit: TurnUnit, row: EffectRow, resources: Sequence[str]) -> None:
    """Give a new effect its place on each of its resources."""
    # Epochs are counted, and other turns' effects looked at, by one transaction at a time.
    lock_names(unit.connection, [_resource_lock(row.tenant, row.system, name) for name in resources])
    for resource in dict.fromkeys(resources):
        _enqueue(unit, row.system, resource, row.effect)


def blocker_of(unit: TurnUnit, row: EffectRow, *, touches_nothing: bool = False) -> Blocker | None:
    """Return what the effect has to wait for, or None if its gate may open in this very transaction.

    With ``touches_nothing`` its places aren't looked for: it has none. Places of other turns that it need
    not wait for are given up, so that however often a thing is written, a gate looks at what is open.
    """
    places = () if touches_nothing else _places(unit, row.effect)
    locks = [_resource_lock(row.tenant, place.system, place.resource) for place in places]
    if row.identity is not None:
        locks.append(f"identity/{row.tenant}/{row.system}/{row.identity}")
    # No other turn may pass its gate under one of these names at the same time.
    lock_names(unit.connection, locks)
    blocker = _identity_blocker(unit, row)
    if blocker is not None or not places:
        return blocker
    before = [(place, found) for place in places for found in _before(unit, place)]
    blockers = [_blocker(found) for _, found in before if _is_ahead(found, row.turn)]
    if not blockers:
        for place in {place for place, found in before if found.turn != row.turn}:
            _DROP_PLACES.run_later(unit.connection, {**place.named(row.tenant), "turn_is": row.turn})
        return None
    # What this turn's own end commits decides when this effect can be: no wait leads past it.
    return min(blockers, key=lambda one: not (one.turn == row.turn and one.held_for == "turn_end"))


def _enqueue(unit: TurnUnit, system: str, resource: str, effect: str) -> None:
    last = _LAST_EPOCH.run(
        unit.connection, {"tenant_is": unit.turn.tenant, "system_is": system, "resource_is": resource}
    ).scalar_one()
    _ADD_PLACE.ask(
        unit.connection,
        {
            "tenant": unit.turn.tenant,
            "system": system,
            "resource": resource,
            "epoch": (last or 0) + 1,
            "effect": effect,
            "turn": unit.turn.turn,
        },
    )


def _places(unit: TurnUnit, effect: str) -> tuple[_Place, ...]:
    named = {"tenant_is": unit.turn.tenant, "effect_is": effect}
    return tuple(_Place(row.system, row.resource, row.epoch) for row in _PLACES.run(unit.connection, named))


def _resource_lock(tenant: str, system: str, resource: str) -> str:
    return f"resource/{tenant}/{system}/{resource}"


def _identity_blocker(unit: TurnUnit, row: EffectRow) -> Blocker | None:
    """Return another effect on the same business identity that isn't settled."""
    if row.identity is None:
        return None
    found = _SAME_IDENTITY.run(
        unit.connection,
        {
            "tenant_is": row.tenant,
            "system_is": row.system,
            "identity_is": row.identity,
            "effect_is": row.effect,
        },
    ).one_or_none()
    return None if found is None else Blocker(found.title, found.turn, found.held_for)


def _before(unit: TurnUnit, place: _Place) -> Rows:
    """Return what was prepared earlier on a resource, oldest first."""
    return _BEFORE.run(unit.connection, place.named(unit.turn.tenant))


def _is_ahead(found: Row, turn: str) -> bool:
    """Tell whether what was prepared earlier on a resource isn't done with, as seen by an effect of a turn.

    Another turn's effect is done with when its turn has ended, not when its row is committed: an abort
    would undo it over what this one writes.
    """
    state = State(found.state)
    if found.turn == turn:
        return state in IN_DOUBT or state is State.PREPARED
    return state not in CLOSED or (state is State.COMMITTED and found.turn_state in schema.OCCUPYING)


def _blocker(found: Row) -> Blocker:
    return Blocker(found.title, found.turn, found.held_for)


def is_overtaken(unit: TurnUnit, row: EffectRow) -> bool:
    """Tell whether an earlier effect of its turn on the same resource was committed since it was prepared."""
    return any(
        (found.turn, found.state) == (row.turn, State.COMMITTED) and found.at > row.prepared_at
        for place in _places(unit, row.effect)
        for found in _before(unit, place)
    )


def must_yield(unit: TurnUnit, row: EffectRow) -> bool:
    """Tell whether turns wait for each other in a circle, of which this effect's is the youngest.

    Such turns would wait until their bounds are over. Each of them looks for itself, and only the youngest
    gives way: so it follows nobody who is younger. The effect's own wait is noted already.
    """
    me = (unit.turn.created_at, row.turn)
    seen: set[str] = set()
    to_visit = [row.turn]
    while to_visit and len(seen) <= _FARTHEST:
        turn = to_visit.pop()
        if turn in seen:
            continue
        seen.add(turn)
        for found in _waited_for(unit, turn):
            if turn != row.turn and found.turn == row.turn:
                return True
            if (found.turn_created_at, found.turn) < me:
                to_visit.append(found.turn)
    return False


def _waited_for(unit: TurnUnit, turn: str) -> Iterator[Row]:
    """Yield what effects of other turns a turn's effects wait for."""
    waiting = _WAITING.run(unit.connection, {"tenant_is": unit.turn.tenant, "turn_is": turn})
    for effect in waiting:
        for place in _places(unit, effect.effect):
            for found in _before(unit, place):
                if found.turn != turn and _is_ahead(found, turn):
                    yield found
