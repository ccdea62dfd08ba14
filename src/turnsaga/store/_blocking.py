"""What keeps a gate shut: another effect on the same business identity, or an earlier one on a resource."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Select, bindparam, func, insert, select

from turnsaga.ledger import CLOSED, IN_DOUBT, State
from turnsaga.store import schema
from turnsaga.store._postgres import lock_names
from turnsaga.store._prepared import Prepared
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
_RESOURCES: Final = Prepared(
    select(_resources.c.resource).where(matches(_resources.c.tenant, _resources.c.effect))
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
_AHEAD: Final = sorted(IN_DOUBT | {State.PREPARED})


def _earlier_on_resource() -> Select[str, str, str | None]:
    mine, other, effect, turn = _resources, _resources.alias(), _effects, _turns
    return (
        select(effect.c.title, effect.c.turn, effect.c.held_for)
        .select_from(
            mine.join(
                other,
                (other.c.tenant == mine.c.tenant)
                & (other.c.system == mine.c.system)
                & (other.c.resource == mine.c.resource)
                & (other.c.epoch < mine.c.epoch)
                & (other.c.effect != mine.c.effect),
            )
            .join(effect, (effect.c.tenant == other.c.tenant) & (effect.c.effect == other.c.effect))
            .join(turn, (turn.c.tenant == other.c.tenant) & (turn.c.turn == other.c.turn))
        )
        .where(
            matches(mine.c.tenant, mine.c.effect)
            & (
                ((other.c.turn == bindparam("turn_is")) & one_of(effect.c.state, _AHEAD))
                | (
                    (other.c.turn != bindparam("turn_is"))
                    & (
                        ~one_of(effect.c.state, sorted(CLOSED))
                        | ((effect.c.state == State.COMMITTED) & one_of(turn.c.state, schema.OCCUPYING))
                    )
                )
            )
        )
    )


def _committed_before() -> Select[str]:
    mine, other, effect = _resources, _resources.alias(), _effects
    return (
        select(effect.c.effect)
        .select_from(
            mine.join(
                other,
                (other.c.tenant == mine.c.tenant)
                & (other.c.system == mine.c.system)
                & (other.c.resource == mine.c.resource)
                & (other.c.epoch < mine.c.epoch),
            ).join(effect, (effect.c.tenant == other.c.tenant) & (effect.c.effect == other.c.effect))
        )
        .where(
            matches(mine.c.tenant, mine.c.effect)
            & (effect.c.turn == bindparam("turn_is"))
            & (effect.c.state == State.COMMITTED)
            & (effect.c.at > bindparam("since", type_=schema.Instant))
        )
        .limit(1)
    )


_EARLIER_ON_RESOURCE: Final = Prepared(_earlier_on_resource())
_COMMITTED_BEFORE: Final = Prepared(_committed_before())
_WAITING: Final = select(_effects.c.effect).where(
    matches(_effects.c.tenant, _effects.c.turn)
    & (_effects.c.state == State.PREPARED)
    & (_effects.c.held_for == "resource")
)
_AGES: Final = select(_turns.c.turn, _turns.c.created_at).where(
    matches(_turns.c.tenant) & _turns.c.turn.in_(bindparam("turns", expanding=True))
)


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


def blocker_of(unit: TurnUnit, row: EffectRow, resources: Sequence[str] | None = None) -> Blocker | None:
    """Return what the effect has to wait for, or None if its gate may open in this very transaction.

    Without ``resources`` those that it was given a place on are read.
    """
    if resources is None:
        resources = _resources_of(unit, row)
    locks = [_resource_lock(row.tenant, row.system, name) for name in resources]
    if row.identity is not None:
        locks.append(f"identity/{row.tenant}/{row.system}/{row.identity}")
    # No other turn may pass its gate under one of these names at the same time.
    lock_names(unit.connection, locks)
    blocker = _identity_blocker(unit, row)
    if blocker is not None or not resources:
        return blocker
    found = _resource_blockers(unit, turn=row.turn, effect=row.effect)
    # What this turn's own end commits decides when this effect can be: no wait leads past it.
    found.sort(key=lambda one: not (one.turn == row.turn and one.held_for == "turn_end"))
    return found[0] if found else None


def _enqueue(unit: TurnUnit, system: str, resource: str, effect: str) -> None:
    last = _LAST_EPOCH.run(
        unit.connection, {"tenant_is": unit.turn.tenant, "system_is": system, "resource_is": resource}
    ).scalar_one()
    _ADD_PLACE.run(
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


def _resources_of(unit: TurnUnit, row: EffectRow) -> Sequence[str]:
    named = {"tenant_is": row.tenant, "effect_is": row.effect}
    return [row.resource for row in _RESOURCES.run(unit.connection, named)]


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


def _resource_blockers(unit: TurnUnit, *, turn: str, effect: str) -> list[Blocker]:
    """Return the effects that were prepared earlier on one of the same resources and aren't done with.

    An earlier turn's effect is done with when its turn has ended, not when its row is committed: an
    abort would undo it over what this one writes.
    """
    named = {"tenant_is": unit.turn.tenant, "turn_is": turn, "effect_is": effect}
    return [
        Blocker(found.title, found.turn, found.held_for)
        for found in _EARLIER_ON_RESOURCE.run(unit.connection, named)
    ]


def is_overtaken(unit: TurnUnit, row: EffectRow) -> bool:
    """Tell whether an earlier effect of its turn on the same resource was committed since it was prepared."""
    named = {
        "tenant_is": row.tenant,
        "effect_is": row.effect,
        "turn_is": row.turn,
        "since": row.prepared_at,
    }
    return _COMMITTED_BEFORE.run(unit.connection, named).one_or_none() is not None


def must_yield(unit: TurnUnit, row: EffectRow, blocker: Blocker) -> bool:
    """Tell whether turns wait for each other in a circle, of which this effect's is the youngest.

    Such turns would wait until their bounds are over. Each of them finds the circle by itself and names
    the same one to give way, so that exactly one effect is dropped.
    """
    first = row.turn
    waits_for: dict[str, set[str]] = {first: {blocker.turn}}
    to_visit = [blocker.turn]
    while to_visit and len(waits_for) <= _FARTHEST:
        turn = to_visit.pop()
        if turn in waits_for:
            continue
        waits_for[turn] = _waits_for(unit, turn)
        to_visit.extend(waits_for[turn])
    circle = _reachable(waits_for, first)
    if first not in circle:
        return False
    # Of those that it reaches, only those that reach it back are in a circle with it.
    circle = {turn for turn in circle if first in _reachable(waits_for, turn)}
    named = {"tenant_is": row.tenant, "turns": sorted(circle)}
    ages = [(found.created_at, found.turn) for found in unit.connection.execute(_AGES, named)]
    return bool(max(ages)[1] == first)


def _waits_for(unit: TurnUnit, turn: str) -> set[str]:
    waiting = unit.connection.execute(_WAITING, {"tenant_is": unit.turn.tenant, "turn_is": turn}).scalars()
    return {
        blocker.turn
        for effect in waiting.all()
        for blocker in _resource_blockers(unit, turn=turn, effect=effect)
        if blocker.turn != turn
    }


def _reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    to_visit = list(edges.get(start, ()))
    while to_visit:
        turn = to_visit.pop()
        if turn not in seen:
            seen.add(turn)
            to_visit.extend(edges.get(turn, ()))
    return seen
