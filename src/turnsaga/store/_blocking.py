"""What keeps a gate shut: another effect on the same business identity, or an earlier one on a resource."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Select, bindparam, func, insert, select

from turnsaga.ledger import CLOSED, IN_DOUBT, State
from turnsaga.store import schema
from turnsaga.store._postgres import lock_names
from turnsaga.store._rows import EffectRow
from turnsaga.store._statements import matches
from turnsaga.store._unit import TurnUnit
from turnsaga.store.schema import one_of

__all__ = ["blocker_of", "enqueue"]

_effects, _turns, _resources = schema.effects, schema.turns, schema.resources
_LAST_EPOCH: Final = select(func.max(_resources.c.epoch)).where(
    matches(_resources.c.tenant, _resources.c.system, _resources.c.resource)
)
_RESOURCES: Final = select(_resources.c.resource).where(matches(_resources.c.tenant, _resources.c.effect))
_SAME_IDENTITY: Final = (
    select(_effects.c.title)
    .where(
        matches(_effects.c.tenant, _effects.c.system, _effects.c.identity)
        & (_effects.c.effect != bindparam("effect_is"))
        & one_of(_effects.c.state, schema.UNSETTLED)
    )
    .limit(1)
)


_AHEAD: Final = sorted(IN_DOUBT | {State.PREPARED})


def _earlier_on_resource() -> Select[str]:
    mine, other, effect, turn = _resources, _resources.alias(), _effects, _turns
    return (
        select(effect.c.title)
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
                        | ((effect.c.state == State.COMMITTED) & one_of(turn.c.state, schema.OPEN))
                    )
                )
            )
        )
        .limit(1)
    )


_EARLIER_ON_RESOURCE: Final = _earlier_on_resource()


def enqueue(unit: TurnUnit, row: EffectRow, resources: Sequence[str]) -> None:
    """Give a new effect its place on each of its resources."""
    # Epochs are counted, and other turns' effects looked at, by one transaction at a time.
    lock_names(unit.connection, [_resource_lock(row.tenant, row.system, name) for name in resources])
    for resource in dict.fromkeys(resources):
        _enqueue(unit, row.system, resource, row.effect)


def blocker_of(unit: TurnUnit, row: EffectRow, resources: Sequence[str] | None = None) -> str | None:
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
    return _identity_blocker(unit, row) or (_resource_blocker(unit, row) if resources else None)


def _enqueue(unit: TurnUnit, system: str, resource: str, effect: str) -> None:
    last = unit.connection.execute(
        _LAST_EPOCH, {"tenant_is": unit.turn.tenant, "system_is": system, "resource_is": resource}
    ).scalar_one()
    unit.connection.execute(
        insert(_resources).values(
            tenant=unit.turn.tenant,
            system=system,
            resource=resource,
            epoch=(last or 0) + 1,
            effect=effect,
            turn=unit.turn.turn,
        )
    )


def _resources_of(unit: TurnUnit, row: EffectRow) -> Sequence[str]:
    named = {"tenant_is": row.tenant, "effect_is": row.effect}
    return unit.connection.execute(_RESOURCES, named).scalars().all()


def _resource_lock(tenant: str, system: str, resource: str) -> str:
    return f"resource/{tenant}/{system}/{resource}"


def _identity_blocker(unit: TurnUnit, row: EffectRow) -> str | None:
    """Return another effect on the same business identity that isn't settled."""
    if row.identity is None:
        return None
    return unit.connection.execute(
        _SAME_IDENTITY,
        {
            "tenant_is": row.tenant,
            "system_is": row.system,
            "identity_is": row.identity,
            "effect_is": row.effect,
        },
    ).scalar_one_or_none()


def _resource_blocker(unit: TurnUnit, row: EffectRow) -> str | None:
    """Return an effect that was prepared earlier on one of the same resources and isn't done with.

    An earlier turn's effect is done with when its turn has ended, not when its row is committed: an
    abort would undo it over what this one writes.
    """
    named = {"tenant_is": row.tenant, "turn_is": row.turn, "effect_is": row.effect}
    return unit.connection.execute(_EARLIER_ON_RESOURCE, named).scalar_one_or_none()
