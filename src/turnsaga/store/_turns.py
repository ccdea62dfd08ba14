"""Turns: start, fence, complete, and what is asked of them as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, insert, update

from turnsaga import settle
from turnsaga.errors import NotFound, StartConflict, TurnInProgress
from turnsaga.keys import digest, turn_id
from turnsaga.ledger import IN_DOUBT, Event, State, TurnEventName, TurnState
from turnsaga.models import FenceAnswer, FenceRequest, NextSteps, PlannedStep, Principal, TurnRef
from turnsaga.store import schema
from turnsaga.store._handing import CANT_BE_ASKED, hand_over_row
from turnsaga.store._payloads import dump
from turnsaga.store._rows import EffectRow, TurnRow, brief, plan_row, settlement, turn_row
from turnsaga.store._statements import OPEN_TURNS, TURN, matches
from turnsaga.store._unit import TurnUnit

__all__ = [
    "NewTurn",
    "Started",
    "complete",
    "emit_settled",
    "fence",
    "planned",
    "start",
    "undecided",
    "write_fence",
]


_turns, _conversations = schema.turns, schema.conversations
_ADD_TURN: Final = insert(_turns)
_NEXT_POSITION: Final = (
    update(_conversations)
    .where(matches(_conversations.c.tenant, _conversations.c.user, _conversations.c.conversation))
    .values(turns=_conversations.c.turns + 1)
    .returning(_conversations.c.turns)
)
_ADD_CONVERSATION: Final = insert(_conversations)


@dataclass(frozen=True, kw_only=True)
class NewTurn:
    """What a start asks for. ``policies`` are checked already; ``nonce`` makes its keys its own.

    ``model_asked`` is what the start itself named: a repeat of a start that named none is the same start
    also after a deployment's default has changed.
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


@dataclass(frozen=True)
class Started:
    """The turn of a start: a new one, or the one that the same start began before."""

    ref: TurnRef
    conversation: str
    state: TurnState
    created: bool
    deadline_ms: int | None


def start(connection: Connection, new: NewTurn, *, now: datetime) -> Started:
    """Insert the turn, or return the one that the same start key began.

    Raises:
        StartConflict: the key was used with another body.
        TurnInProgress: the conversation has a turn that hasn't ended.
    """
    who = new.principal
    turn = turn_id(tenant=who.tenant, user=who.user, conversation=new.conversation, start_key=new.start_key)
    body = digest(
        {
            "deadline_ms": new.deadline_ms,
            "message": new.message,
            "model": new.model_asked,
            "policies": dict(new.policies),
        }
    )
    ref = TurnRef(tenant=who.tenant, turn=turn)
    present = connection.execute(TURN, {"tenant_is": who.tenant, "turn_is": turn}).one_or_none()
    if present is not None:
        row = turn_row(present)
        if row.start_digest != body:
            raise StartConflict(turn)
        return Started(ref, row.conversation, row.state, created=False, deadline_ms=row.deadline_ms)
    mine = {"tenant_is": who.tenant, "user_is": who.user, "conversation_is": new.conversation}
    position = connection.execute(_NEXT_POSITION, mine).scalar_one_or_none()
    if position is None:
        position = 1
        connection.execute(
            _ADD_CONVERSATION,
            {
                "tenant": who.tenant,
                "user": who.user,
                "conversation": new.conversation,
                "created_at": now,
                "turns": 1,
            },
        )
    busy = connection.execute(OPEN_TURNS, mine).scalar_one_or_none()
    if busy is not None:
        raise TurnInProgress(busy)
    row = TurnRow(
        tenant=who.tenant,
        turn=turn,
        user=who.user,
        conversation=new.conversation,
        position=position,
        start_digest=body,
        state=TurnState.RUNNING,
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
        next_event=1,
        next_order=1,
        next_seq=1,
        follow=False,
        created_at=now,
        begun_at=None,
        ended_at=None,
    )
    connection.execute(_ADD_TURN, vars(row))
    unit = TurnUnit(connection, row, now)
    unit.emit("turn_started", {"turn": turn, "conversation": new.conversation, "state": TurnState.RUNNING})
    return Started(ref, new.conversation, TurnState.RUNNING, created=True, deadline_ms=new.deadline_ms)


def fence(
    connection: Connection, request: FenceRequest, *, now: datetime, owner: Principal | None = None
) -> FenceAnswer:
    """Write the fence if the turn runs: from this transaction's end on, no gate opens.

    The first one counts. On a turn that is settling or has ended it changes nothing.

    Raises:
        NotFound: there is no such turn, or it isn't the owner's.
    """
    unit = TurnUnit.hold(connection, TurnRef(tenant=request.tenant, turn=request.turn), now, events=1)
    if owner is not None and (unit.turn.tenant, unit.turn.user) != (owner.tenant, owner.user):
        raise NotFound("turn", request.turn)
    return write_fence(unit, request)


def write_fence(unit: TurnUnit, request: FenceRequest) -> FenceAnswer:
    """Write the fence of a turn that is held, unless it has one or has ended."""
    if unit.turn.fenced or unit.turn.state is not TurnState.RUNNING:
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
    return FenceAnswer(first=True, state=unit.turn.state)


def complete(connection: Connection, ref: TurnRef, *, now: datetime) -> NextSteps:
    """Complete the turn by compare-and-set; the answer's ``state`` says who won.

    While an effect is still in doubt and nobody's, the turn isn't completed and the answer says what is
    to be done first. Once the turn is fenced it can't be completed any more.
    """
    unit = TurnUnit.hold_running(connection, ref, now)
    if unit is None:
        other = TurnUnit.hold(connection, ref, now)
        return NextSteps(state=other.turn.state, briefs=tuple(brief(row) for row in other.effects()))
    steps = _undecided(unit)
    rows = unit.effects()
    if not steps:
        unit.advance_turn(TurnEventName.COMPLETED, ended_at=now)
        emit_settled(unit, rows)
    return NextSteps(
        steps=steps, settled=not steps, state=unit.turn.state, briefs=tuple(brief(row) for row in rows)
    )


def undecided(connection: Connection, ref: TurnRef, *, now: datetime) -> NextSteps:
    """Return what has to be done about effects in doubt that no call of this turn works on any more.

    For a turn that runs, after its calls have ended. One whose outcome can't be had is handed over here.
    """
    unit = TurnUnit.hold_running(connection, ref, now)
    steps = () if unit is None else _undecided(unit)
    unit = unit or TurnUnit.hold(connection, ref, now)
    rows = unit.effects()
    return NextSteps(steps=steps, state=unit.turn.state, briefs=tuple(brief(row) for row in rows))


def _undecided(unit: TurnUnit) -> tuple[PlannedStep, ...]:
    steps: list[PlannedStep] = []
    for row in unit.effects():
        if row.state is State.PREPARED:
            unit.move(row, Event.DROPPED, held_for=None, error="not sent: its attempts ended before the gate")
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
