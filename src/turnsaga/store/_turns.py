"""Turns: start, fence, complete, and what is asked of them as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import Connection, insert, update

from turnsaga import settle
from turnsaga.errors import StartConflict, TurnInProgress
from turnsaga.keys import digest, turn_id
from turnsaga.ledger import IN_DOUBT, Event, State, TurnEventName, TurnState
from turnsaga.models import CallRef, FenceAnswer, FenceRequest, NextSteps, PlannedStep, Principal, TurnRef
from turnsaga.store import schema
from turnsaga.store._asking import ask_effects, effects_of
from turnsaga.store._handing import CANT_BE_ASKED, hand_over_row
from turnsaga.store._holding import release_prepared
from turnsaga.store._payloads import dump
from turnsaga.store._prepared import Prepared
from turnsaga.store._queue import MAX_QUEUED, ask_first_queued, ask_next, begin_next, queue_length
from turnsaga.store._rows import EffectRow, TurnRow, brief, plan_row, settlement, turn_row
from turnsaga.store._statements import OCCUPANT, TURN, matches
from turnsaga.store._unit import Taking, TurnUnit

__all__ = [
    "NewTurn",
    "Started",
    "complete",
    "emit_settled",
    "planned",
    "start",
    "undecided",
    "write_fence",
]


_turns, _conversations = schema.turns, schema.conversations
_ADD_TURN: Final = Prepared(insert(_turns))
_NEXT_POSITION: Final = Prepared(
    update(_conversations)
    .where(matches(_conversations.c.tenant, _conversations.c.user, _conversations.c.conversation))
    .values(turns=_conversations.c.turns + 1)
    .returning(_conversations.c.turns)
)
_ADD_CONVERSATION: Final = Prepared(insert(_conversations))


@dataclass(frozen=True, kw_only=True)
class NewTurn:
    """What a start asks for. ``policies`` are checked already; ``nonce`` makes its keys its own.

    ``on_busy`` says what to do while another turn of the conversation runs. ``model_asked`` is what the
    start itself named: a repeat of a start that named none is the same start also after a deployment's
    default has changed.
    """

    principal: Principal
    conversation: str
    start_key: str
    message: str
    model: str
    model_asked: str | None
    policies: Mapping[str, str]
    deadline_ms: int | None
    nonce: str
    on_busy: Literal["refuse", "queue", "abort"] = "refuse"


@dataclass(frozen=True)
class Started:
    """The turn of a start: a new one, or the one that the same start began before.

    ``aborted`` names the turn that this start has fenced, since it was asked to.
    """

    ref: TurnRef
    conversation: str
    state: TurnState
    created: bool
    deadline_ms: int | None
    aborted: str | None = None


def start(connection: Connection, new: NewTurn, *, now: datetime) -> Started:
    """Insert the turn, or return the one that the same start key began.

    Raises:
        StartConflict: the key was used with another body.
        TurnInProgress: the conversation has a turn that hasn't ended, and this one is not to be queued
            behind it, or can't be since too many are.
    """
    who = new.principal
    turn = turn_id(tenant=who.tenant, user=who.user, conversation=new.conversation, start_key=new.start_key)
    body = digest(
        {
            "deadline_ms": new.deadline_ms,
            "message": new.message,
            "model": new.model_asked,
            "policies": dict(new.policies),
            # Left out where it says nothing, so that earlier starts keep their digest.
            **({} if new.on_busy == "refuse" else {"on_busy": new.on_busy}),
        }
    )
    ref = TurnRef(tenant=who.tenant, turn=turn)
    present = TURN.run(connection, {"tenant_is": who.tenant, "turn_is": turn}).one_or_none()
    if present is not None:
        row = turn_row(present)
        if row.start_digest != body:
            raise StartConflict(turn)
        return Started(ref, row.conversation, row.state, created=False, deadline_ms=row.deadline_ms)
    mine = {"tenant_is": who.tenant, "user_is": who.user, "conversation_is": new.conversation}
    next_position = _NEXT_POSITION.ask(connection, mine)
    running, queued = OCCUPANT.ask(connection, mine), ask_first_queued(connection, mine)
    position = next_position.scalar_one_or_none()
    if position is None:
        position = 1
        _ADD_CONVERSATION.ask(
            connection,
            {
                "tenant": who.tenant,
                "user": who.user,
                "conversation": new.conversation,
                "created_at": now,
                "turns": 1,
            },
        )
    occupant = running.scalar_one_or_none()
    busy = occupant or queued.scalar_one_or_none()
    if busy is not None and (new.on_busy == "refuse" or queue_length(connection, mine) >= MAX_QUEUED):
        raise TurnInProgress(busy)
    state = TurnState.RUNNING if busy is None else TurnState.QUEUED
    row = TurnRow(
        tenant=who.tenant,
        turn=turn,
        user=who.user,
        conversation=new.conversation,
        position=position,
        start_digest=body,
        state=state,
        nonce=new.nonce,
        message=dump(new.message),
        model=new.model,
        policies=dump(dict(new.policies)),
        deadline_ms=new.deadline_ms,
        fence=None,
        fence_cause=None,
        fence_via=None,
        fence_by=None,
        seen=None,
        reason=None,
        writer=None,
        next_event=1,
        next_order=1,
        next_seq=1,
        follow=False,
        created_at=now,
        begun_at=None,
        ended_at=None,
    )
    _ADD_TURN.ask(connection, vars(row))
    if state is TurnState.RUNNING:
        TurnUnit(connection, row, now).emit_started()
    aborted = None
    if occupant is not None and new.on_busy == "abort" and _make_room(connection, who, occupant, now=now):
        aborted = occupant
    return Started(ref, new.conversation, state, created=True, deadline_ms=new.deadline_ms, aborted=aborted)


def _make_room(connection: Connection, who: Principal, occupant: str, *, now: datetime) -> bool:
    """Fence the turn that runs, since its user's next message is to take its place."""
    unit = TurnUnit.hold(connection, TurnRef(tenant=who.tenant, turn=occupant), now)
    request = FenceRequest(
        tenant=who.tenant,
        turn=occupant,
        cause="abort",
        via="api",
        reason="the user's next message took its place",
        by=f"{who.tenant}/{who.user}",
    )
    return write_fence(unit, request).first


def write_fence(unit: TurnUnit, request: FenceRequest) -> FenceAnswer:
    """Write the fence of a turn that is held, unless it has one or has ended; what is prepared is released.

    A turn that is still queued has done nothing, and ends by this.
    """
    queued = unit.turn.state is TurnState.QUEUED
    if unit.turn.fenced or not (queued or unit.turn.state is TurnState.RUNNING):
        return FenceAnswer(first=False, state=unit.turn.state)
    aborts = request.cause == "abort"
    unit.advance_turn(
        TurnEventName.ABORT_ACCEPTED if aborts else TurnEventName.FAILURE_MET,
        fence=unit.now,
        fence_cause=request.cause,
        fence_via=request.via,
        fence_by=request.by,
        seen=request.seen,
        reason=request.reason,
        ended_at=unit.now if queued else None,
    )
    unit.emit(
        "turn_aborting",
        {
            "turn": request.turn,
            "state": unit.turn.state,
            "reason": request.reason,
            "by": request.by,
            "via": request.via,
            "seen": request.seen,
        },
    )
    if queued:
        emit_settled(unit, ())
    released = () if queued else release_prepared(unit)
    return FenceAnswer(first=True, state=unit.turn.state, briefs=tuple(map(brief, released)))


def complete(connection: Connection, ref: TurnRef, *, now: datetime) -> NextSteps:
    """Complete the turn by compare-and-set; the answer's ``state`` says who won.

    While an effect is still in doubt and nobody's, the turn isn't completed and the answer says what is
    to be done first. Once the turn is fenced it can't be completed any more.
    """
    taking, effects = Taking(connection, ref, now, running=True), ask_effects(connection, ref)
    unit = taking.unit()
    if unit is None:
        other = taking.anyway().held()
        return NextSteps(state=other.turn.state, briefs=tuple(brief(row) for row in other.effects()))
    steps = _undecided(unit, effects_of(effects))
    # Some may have moved by this.
    effects, queued = ask_effects(connection, ref), ask_next(unit)
    rows = effects_of(effects)
    next_turn = None
    if not steps:
        unit.advance_turn(TurnEventName.COMPLETED, ended_at=now)
        emit_settled(unit, rows)
        next_turn = begin_next(unit, queued)
    return NextSteps(
        steps=steps,
        settled=not steps,
        state=unit.turn.state,
        briefs=tuple(brief(row) for row in rows),
        next_turn=next_turn,
    )


def undecided(connection: Connection, ref: CallRef, *, now: datetime) -> NextSteps:
    """Return what has to be done about a call's effect that is in doubt, now that nothing works on it.

    For a turn that runs, after the call has ended. An effect whose outcome can't be had is handed over here.
    """
    turn = TurnRef(tenant=ref.tenant, turn=ref.turn)
    unit = TurnUnit.hold_running(connection, turn, now)
    running = unit is not None
    unit = unit or TurnUnit.hold(connection, turn, now)
    rows = [row for row in unit.effects() if (row.step, row.call) == (ref.step, ref.index)]
    steps = _undecided(unit, rows) if running else ()
    briefs = tuple(brief(unit.effect(row.effect)) for row in rows)
    return NextSteps(steps=steps, state=unit.turn.state, briefs=briefs)


def _undecided(unit: TurnUnit, rows: Sequence[EffectRow]) -> tuple[PlannedStep, ...]:
    steps: list[PlannedStep] = []
    for row in rows:
        if row.state is State.PREPARED:
            unit.move(row, Event.DROPPED, held_for=None, error="not sent: its attempts ended before the gate")
        elif row.state is State.COMPENSATING and not row.owned:
            # Its tool undoes what is unknown, and the undo isn't done with.
            steps.append(planned(row, settle.Action.UNDO))
        elif row.state in IN_DOUBT and not row.owned:
            action = settle.resolution(plan_row(row, undo_given_up=False), fenced=False, now=unit.now)
            if action is settle.Action.HAND_OVER:
                hand_over_row(unit, row, CANT_BE_ASKED)
            else:
                steps.append(planned(row, action))
    return tuple(steps)


def planned(row: EffectRow, action: settle.Action, *, wait_ms: int = 0) -> PlannedStep:
    """Return one action on an effect in the form that a workflow carries out."""
    return PlannedStep.model_validate(
        {
            "action": action.value,
            "effect": row.effect,
            "step": row.step,
            "call": row.call_plan,
            "wait_ms": wait_ms,
        }
    )


def emit_settled(unit: TurnUnit, rows: tuple[EffectRow, ...]) -> None:
    """Write the turn's last event."""
    result = settlement(unit.turn, rows)
    unit.emit(
        "turn_settled",
        {
            "turn": unit.turn.turn,
            "state": unit.turn.state,
            "reason": unit.turn.reason,
            "settlement": None if result is None else result.model_dump(mode="json"),
        },
    )
