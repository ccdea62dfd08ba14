"""The gate: prepare an effect, and claim it for one attempt, in one transaction.

An attempt that claims the row gets a new token. Nothing is prepared and no gate opens on a turn that is
fenced, and none while another effect on the same identity or resource isn't done with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, insert, select, update

from turnsaga import settle
from turnsaga.errors import NotFound
from turnsaga.keys import effect_id, undo_key
from turnsaga.ledger import Event, State
from turnsaga.models import CallPlan, CallRef, TurnRef
from turnsaga.store import schema
from turnsaga.store._blocking import blocker_of, enqueue
from turnsaga.store._payloads import dump, load, load_object
from turnsaga.store._rows import EffectRow, effect_row, plan_row
from turnsaga.store._statements import CALL, matches
from turnsaga.store._unit import TurnUnit
from turnsaga.store.schema import safe_text

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
    unit, fenced = _held(connection, ref, now, likely_new=True)
    context = call_context(connection, ref)
    if context.effect is not None:
        return _claim(unit, ref, None, fenced=fenced)
    if fenced:
        return Claim(Verdict.FENCED)
    if context.result is not None:
        return Claim(Verdict.ANSWERED)
    return _claim_new(unit, ref, draft(context))


def claim_commit(connection: Connection, ref: CallRef, new: NewEffect | None, *, now: datetime) -> Claim:
    """Prepare the call's effect if it has none yet, and open the gate: one transaction.

    ``new`` may be None once the call has its effect. Nothing is prepared and no gate opens on a turn
    that is fenced. A claim that an earlier attempt left behind is taken over only where the downstream
    system honours the key; elsewhere the row becomes ``unknown``.
    """
    unit, fenced = _held(connection, ref, now, likely_new=new is not None)
    return _claim(unit, ref, new, fenced=fenced)


def _held(connection: Connection, ref: CallRef, now: datetime, *, likely_new: bool) -> tuple[TurnUnit, bool]:
    turn = TurnRef(tenant=ref.tenant, turn=ref.turn)
    # A new effect is prepared and claimed: two events, and its place in the turn.
    new = int(likely_new)
    unit = TurnUnit.hold_running(connection, turn, now, events=2 * new, seqs=new)
    return (TurnUnit.hold(connection, turn, now), True) if unit is None else (unit, False)


def _claim(unit: TurnUnit, ref: CallRef, new: NewEffect | None, *, fenced: bool) -> Claim:
    linked = _linked(unit, ref)
    if linked is None:
        return Claim(Verdict.FENCED) if fenced or new is None else _claim_new(unit, ref, new)
    row, repeated = linked
    if repeated:
        return Claim(Verdict.REPEATED, row)
    if row.state is State.PREPARED:
        return Claim(Verdict.FENCED, row) if fenced else _gate(unit, row)
    if row.state in {State.COMMITTING, State.UNKNOWN} and not row.owned:
        return _take_over(unit, row, fenced=fenced)
    return Claim(Verdict.STORED, row)


def _claim_new(unit: TurnUnit, ref: CallRef, new: NewEffect) -> Claim:
    row, repeated = _prepared(unit, ref, new)
    return Claim(Verdict.REPEATED, row) if repeated else _gate(unit, row, new.resources)


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
    enqueue(unit, row, new.resources)
    unit.announce(row)
    return row


def _gate(unit: TurnUnit, row: EffectRow, resources: Sequence[str] | None = None) -> Claim:
    blocker = blocker_of(unit, row, resources)
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
