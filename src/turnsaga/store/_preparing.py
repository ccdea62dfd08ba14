"""A call's effect as it is prepared: read, inserted once, and held where its policy says so."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, insert, select, update

from turnsaga.errors import KeyConflict, NotFound
from turnsaga.keys import effect_id, undo_key
from turnsaga.ledger import State
from turnsaga.models import CallPlan, CallRef, HeldFor
from turnsaga.settle import OnUnknown
from turnsaga.store import schema
from turnsaga.store._blocking import enqueue
from turnsaga.store._payloads import dump, load, load_object
from turnsaga.store._prepared import Prepared, Rows
from turnsaga.store._rows import EffectRow, changed, effect_row
from turnsaga.store._statements import CALL, matches
from turnsaga.store._unit import TurnUnit
from turnsaga.store.schema import safe_text
from turnsaga.tools import CommitPolicy, Policy

__all__ = ["CallContext", "NewEffect", "ask_context", "call_context", "context_of", "linked", "prepared"]

_calls, _effects, _turns = schema.calls, schema.effects, schema.turns
_CONTEXT: Final = Prepared(
    select(
        _turns.c.user, _turns.c.conversation, _turns.c.nonce, _turns.c.policies, _turns.c.fence,
        _calls.c.tool, _calls.c.arguments, _calls.c.occurrence, _calls.c.digest, _calls.c.effect,
        _calls.c.result,
    )
    .select_from(_calls.join(_turns, (_turns.c.tenant == _calls.c.tenant) & (_turns.c.turn == _calls.c.turn)))
    .where(CALL)
)  # fmt: skip
_LINK: Final = Prepared(select(_calls.c.effect, _calls.c.repeated).where(CALL))
_SET_LINK: Final = Prepared(update(_calls).where(CALL))
_BY_KEY: Final = Prepared(select(_effects).where(matches(_effects.c.tenant, _effects.c.key)))
_INSERT: Final = Prepared(insert(_effects))


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
    policy: Policy
    confirm: timedelta
    shown_digest: str
    read_version: str | None
    reversible: bool
    keyed: bool
    can_look_up: bool
    can_check_undone: bool
    on_unknown: OnUnknown
    halts: bool
    key_dies_with_undo: bool
    undo_keyed: bool
    key_life_ms: int | None
    send_by_ms: int
    landing_ms: int
    max_sends: int
    max_undo_sends: int
    title: str
    no_undo_reason: str | None


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
    return context_of(ask_context(connection, ref), ref)


def ask_context(connection: Connection, ref: CallRef) -> Rows:
    """Ask for a stored call, for ``context_of``."""
    return _CONTEXT.ask(connection, _named(ref))


def context_of(asked: Rows, ref: CallRef) -> CallContext:
    """Return the stored call that was asked for.

    Raises:
        NotFound: the turn has no such call.
    """
    row = asked.one_or_none()
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


def linked(unit: TurnUnit, ref: CallRef) -> tuple[EffectRow, bool] | None:
    """Return the call's effect, and whether it is an earlier call's; None if it has none yet."""
    row = _LINK.run(unit.connection, _named(ref)).one()
    return None if row.effect is None else (unit.effect(row.effect), row.repeated)


Opening: TypeAlias = Callable[[TurnUnit, EffectRow], Mapping[str, Any] | None]
"""Looks at an effect that is about to be inserted, and returns what else of it changes with that."""


def prepared(
    unit: TurnUnit, ref: CallRef, new: NewEffect, *, opening: Opening | None = None
) -> tuple[EffectRow, bool]:
    """Insert the call's effect, or find the one that its key has; the second value tells which.

    Raises:
        KeyConflict: the key stands for other arguments.
    """
    present = _BY_KEY.run(unit.connection, {"tenant_is": ref.tenant, "key_is": new.key}).one_or_none()
    repeated = present is not None
    row = effect_row(present) if present is not None else _inserted(unit, ref, new, opening)
    if present is not None and row.arguments_digest != new.arguments_digest:
        raise KeyConflict(new.key)
    _SET_LINK.run_later(unit.connection, {**_named(ref), "effect": row.effect, "repeated": repeated})
    return row, repeated


def _inserted(unit: TurnUnit, ref: CallRef, new: NewEffect, opening: Opening | None) -> EffectRow:
    turn = unit.turn
    effect = effect_id(turn=turn.turn, key=new.key)
    held_for = _held_for(new.policy)
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
        policy=new.policy.commits.value,
        delay_ms=new.policy.delay // timedelta(milliseconds=1),
        shown_digest=new.shown_digest,
        read_version=new.read_version,
        reversible=new.reversible,
        keyed=new.keyed,
        can_look_up=new.can_look_up,
        can_check_undone=new.can_check_undone,
        on_unknown=new.on_unknown,
        halts=new.halts,
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
        held_for=held_for,
        expires_at=unit.now + new.confirm if held_for == "confirmation" else None,
        not_before=unit.now + new.policy.delay if held_for == "delay" else None,
        decision=None,
        decided_at=None,
        decided_by=None,
        decided_via=None,
        decided_version=None,
        resolution=None,
        error=None,
        commit_order=None,
        first_claim_at=None,
        send_by=None,
        undo_send_by=None,
    )
    changes = None if opening is None else opening(unit, row)
    inserted = row if changes is None else changed(row, changes)
    _INSERT.ask(unit.connection, vars(inserted))
    unit.set_turn(next_seq=turn.next_seq + 1)
    enqueue(unit, row, new.resources)
    unit.announce(row)
    if held_for is not None:
        unit.announce(row, kind="tool_held")
    if inserted is not row:
        unit.announce(inserted)
    return inserted


def _held_for(policy: Policy) -> HeldFor | None:
    if policy.commits is CommitPolicy.CONFIRMED:
        return "confirmation"
    if policy.commits is CommitPolicy.TURN_END:
        return "turn_end"
    return "delay" if policy.holds else None


def _named(ref: CallRef) -> dict[str, Any]:
    return {"tenant_is": ref.tenant, "turn_is": ref.turn, "step_is": ref.step, "index_is": ref.index}
