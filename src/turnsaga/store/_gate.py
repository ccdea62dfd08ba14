"""The gate: prepare an effect, and claim it for one attempt, in one transaction.

An attempt that claims the row gets a new token. Nothing is prepared and no gate opens on a turn that is
fenced, and none while another effect on the same identity or resource isn't done with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, func, insert, select, update

from turnsaga import settle
from turnsaga.errors import NotFound
from turnsaga.keys import effect_id, undo_key
from turnsaga.ledger import CLOSED, IN_DOUBT, Event, State
from turnsaga.models import CallPlan, CallRef, TurnRef
from turnsaga.store import schema
from turnsaga.store._payloads import dump, load, load_object
from turnsaga.store._postgres import lock_names
from turnsaga.store._rows import EffectRow, effect_row, plan_row
from turnsaga.store._statements import CALL, matches
from turnsaga.store._unit import TurnUnit
from turnsaga.store.schema import one_of, safe_text

__all__ = ["CallContext", "Claim", "NewEffect", "Verdict", "call_context", "claim_commit", "draft_and_claim"]


_calls, _effects, _turns, _resources = schema.calls, schema.effects, schema.turns, schema.resources
_CONTEXT: Final = (
    select(
        _turns.c.user, _turns.c.conversation, _turns.c.nonce, _turns.c.policies, _turns.c.fence,
        _calls.c.tool, _calls.c.arguments, _calls.c.occurrence, _calls.c.digest, _calls.c.effect,
        _calls.c.result,
    )
    .select_from(_calls.join(_turns, (_turns.c.tenant == _calls.c.tenant) & (_turns.c.turn == _calls.c.turn)))
    .where(CALL)
)  # fmt: skip
_LINK: Final = select(_calls.c.effect, _calls.c.repeated).where(CALL)
_SET_LINK: Final = update(_calls).where(CALL)
_BY_KEY: Final = select(_effects).where(matches(_effects.c.tenant, _effects.c.key))
_INSERT: Final = insert(_effects)
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


@dataclass(frozen=True, kw_only=True)
class NewEffect:
    """An effect as it is prepared: everything that its later attempts need, fixed from here on."""

    tool: str
    system: str
    identity: str | None
    arguments: Mapping[str, Any]
    arguments_digest: str
    occurrence: int
    key: str
    request: Mapping[str, Any]
    resources: Sequence[str]
    plan: CallPlan
    policy: str
    reversible: bool
    keyed: bool
    can_look_up: bool
    key_dies_with_undo: bool
    undo_keyed: bool
    key_life_ms: int | None
    send_by_ms: int
    landing_ms: int
    max_sends: int
    max_undo_sends: int
    title: str
    no_undo_reason: str | None


class Verdict(StrEnum):
    """What an attempt may do."""

    SEND = "send"
    ANSWERED = "answered"
    STORED = "stored"
    REPEATED = "repeated"
    BUSY = "busy"
    FENCED = "fenced"


@dataclass(frozen=True)
class Claim:
    """The gate's answer. ``row`` is None only where nothing was prepared; ``blocker`` is set for BUSY."""

    verdict: Verdict
    row: EffectRow | None = None
    blocker: str | None = None


@dataclass(frozen=True)
class CallContext:
    """A call as the model wrote it, and where it belongs."""

    user: str
    conversation: str
    nonce: str
    policies: Mapping[str, str]
    fenced: bool
    tool: str
    arguments: str
    occurrence: int
    digest: str | None
    effect: str | None
    result: str | None


def call_context(connection: Connection, ref: CallRef) -> CallContext:
    """Return a stored call.

    Raises:
        NotFound: the turn has no such call.
    """
    row = connection.execute(_CONTEXT, _named(ref)).one_or_none()
    if row is None:
        raise NotFound("call", f"{ref.turn}/{ref.step}/{ref.index}")
    return CallContext(
        user=row.user,
        conversation=row.conversation,
        nonce=row.nonce,
        policies=load_object(row.policies),
        fenced=row.fence is not None,
        tool=load(row.tool),
        arguments=load(row.arguments),
        occurrence=row.occurrence,
        digest=row.digest,
        effect=row.effect,
        result=row.result,
    )


def draft_and_claim(
    connection: Connection, ref: CallRef, draft: Callable[[CallContext], NewEffect], *, now: datetime
) -> Claim:
    """Read the call, draft its effect if it has none yet, and claim it: one transaction for all of it.

    What ``draft`` raises is raised here, and nothing is written then.

    Raises:
        NotFound: the turn has no such call.
    """
    context = call_context(connection, ref)
    new: NewEffect | None = None
    if context.effect is None and not context.fenced:
        if context.result is not None:
            return Claim(Verdict.ANSWERED)
        new = draft(context)
    return claim_commit(connection, ref, new, now=now)


def claim_commit(connection: Connection, ref: CallRef, new: NewEffect | None, *, now: datetime) -> Claim:
    """Prepare the call's effect if it has none yet, and open the gate: one transaction.

    ``new`` may be None once the call has its effect. Nothing is prepared and no gate opens on a turn
    that is fenced. A claim that an earlier attempt left behind is taken over only where the downstream
    system honours the key; elsewhere the row becomes ``unknown``.
    """
    turn = TurnRef(tenant=ref.tenant, turn=ref.turn)
    unit = TurnUnit.hold_running(connection, turn, now)
    fenced = unit is None
    unit = unit or TurnUnit.hold(connection, turn, now)
    linked = _linked(unit, ref)
    if linked is None:
        if fenced or new is None:
            return Claim(Verdict.FENCED)
        row, repeated = _prepared(unit, ref, new)
    else:
        row, repeated = linked
    if repeated:
        return Claim(Verdict.REPEATED, row)
    if row.state is State.PREPARED:
        return Claim(Verdict.FENCED, row) if fenced else _gate(unit, row)
    if row.state in {State.COMMITTING, State.UNKNOWN} and not row.owned:
        return _take_over(unit, row, fenced=fenced)
    return Claim(Verdict.STORED, row)


def _named(ref: CallRef) -> dict[str, Any]:
    return {"tenant_is": ref.tenant, "turn_is": ref.turn, "step_is": ref.step, "index_is": ref.index}


def _linked(unit: TurnUnit, ref: CallRef) -> tuple[EffectRow, bool] | None:
    row = unit.connection.execute(_LINK, _named(ref)).one()
    return None if row.effect is None else (unit.effect(row.effect), row.repeated)


def _prepared(unit: TurnUnit, ref: CallRef, new: NewEffect) -> tuple[EffectRow, bool]:
    present = unit.connection.execute(_BY_KEY, {"tenant_is": ref.tenant, "key_is": new.key}).one_or_none()
    repeated = present is not None
    row = effect_row(present) if present is not None else _inserted(unit, ref, new)
    unit.connection.execute(_SET_LINK, {**_named(ref), "effect": row.effect, "repeated": repeated})
    return row, repeated


def _inserted(unit: TurnUnit, ref: CallRef, new: NewEffect) -> EffectRow:
    turn = unit.turn
    effect = effect_id(turn=turn.turn, key=new.key)
    row = EffectRow(
        tenant=turn.tenant,
        effect=effect,
        turn=turn.turn,
        user=turn.user,
        conversation=turn.conversation,
        seq=turn.next_seq,
        step=ref.step,
        call=ref.index,
        tool=new.tool,
        system=new.system,
        identity=safe_text(new.identity),
        arguments=dump(dict(new.arguments)),
        arguments_digest=new.arguments_digest,
        occurrence=new.occurrence,
        key=new.key,
        undo_key=undo_key(new.key),
        request=dump(dict(new.request)),
        plan=new.plan.model_dump_json(),
        policy=new.policy,
        reversible=new.reversible,
        keyed=new.keyed,
        can_look_up=new.can_look_up,
        key_dies_with_undo=new.key_dies_with_undo,
        undo_keyed=new.undo_keyed,
        key_life_ms=new.key_life_ms,
        send_by_ms=new.send_by_ms,
        landing_ms=new.landing_ms,
        max_sends=new.max_sends,
        max_undo_sends=new.max_undo_sends,
        title=safe_text(new.title) or "",
        no_undo_reason=safe_text(new.no_undo_reason),
        state=State.PREPARED,
        version=1,
        token=0,
        owned=False,
        sends=0,
        answers=0,
        undo_sends=0,
        undo_refusals=0,
        prepared_at=unit.now,
        at=unit.now,
        receipt=None,
        result=None,
        evidence=None,
        held_for=None,
        error=None,
        commit_order=None,
        first_claim_at=None,
        send_by=None,
    )
    unit.connection.execute(_INSERT, vars(row))
    unit.set_turn(next_seq=turn.next_seq + 1)
    # Epochs are counted, and other turns' effects looked at, by one transaction at a time.
    lock_names(unit.connection, [_resource_lock(turn.tenant, new.system, name) for name in new.resources])
    for resource in dict.fromkeys(new.resources):
        _enqueue(unit, new.system, resource, effect)
    unit.announce(row)
    return row


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


def _gate(unit: TurnUnit, row: EffectRow) -> Claim:
    resources = _resources_of(unit, row)
    locks = [_resource_lock(row.tenant, row.system, name) for name in resources]
    if row.identity is not None:
        locks.append(f"identity/{row.tenant}/{row.system}/{row.identity}")
    # No other turn may pass its gate under one of these names at the same time.
    lock_names(unit.connection, locks)
    blocker = _identity_blocker(unit, row) or (_resource_blocker(unit, row) if resources else None)
    if blocker is not None:
        if row.held_for is None:
            row = unit.note(row, "tool_held", held_for="resource")
        return Claim(Verdict.BUSY, row, blocker)
    return Claim(Verdict.SEND, _claimed(unit, row, Event.GATE_OPENED))


def _take_over(unit: TurnUnit, row: EffectRow, *, fenced: bool) -> Claim:
    planned = plan_row(row, undo_given_up=False)
    if settle.resolution(planned, fenced=fenced, now=unit.now) is settle.Action.SEND_AGAIN:
        return Claim(Verdict.SEND, _claimed(unit, row, Event.CLAIMED_AGAIN))
    if row.state is State.COMMITTING:
        row = unit.move(
            row, Event.COMMIT_LOST, token=row.token + 1, error="an earlier attempt gave no answer"
        )
    return Claim(Verdict.STORED, row)


def _claimed(unit: TurnUnit, row: EffectRow, event: Event) -> EffectRow:
    return unit.move(
        row,
        event,
        quiet=row.state is State.COMMITTING,
        token=row.token + 1,
        held_for=None,
        error=None,
        sends=row.sends + 1,
        first_claim_at=row.first_claim_at or unit.now,
        send_by=unit.now + timedelta(milliseconds=row.send_by_ms),
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
