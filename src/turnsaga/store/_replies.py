"""What the model said: replies, their calls, the text as it streams, and the history that is made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, insert, select, update

from turnsaga.ledger import State, TurnState
from turnsaga.models import CallRef, StepRef, TurnRef
from turnsaga.store import schema
from turnsaga.store._payloads import dump, dump_outcome, load, load_object
from turnsaga.store._rows import EffectRow, TurnRow, effect_row, turn_row
from turnsaga.store._unit import TurnUnit
from turnsaga.transcript import PastCall, PastStep, PastTurn, effect_result, notice

__all__ = [
    "NewCall",
    "NewReply",
    "StepContext",
    "StoredCall",
    "append_text",
    "record_reply",
    "record_result",
    "restart_step",
    "step_context",
]


@dataclass(frozen=True, kw_only=True)
class NewCall:
    """One call of a reply. ``kind`` is effect, read or refused; a refused one has its ``result``."""

    call_id: str
    tool: str
    arguments: str
    kind: str
    digest: str | None = None
    repeatable: bool = False
    result: str | None = None


@dataclass(frozen=True, kw_only=True)
class NewReply:
    """A model's whole reply."""

    text: str
    finish: str
    input_tokens: int
    output_tokens: int
    calls: tuple[NewCall, ...]


@dataclass(frozen=True)
class StoredCall:
    """A call as it is stored. ``answered`` says that it has its result already."""

    index: int
    tool: str
    arguments: str
    kind: str
    answered: bool


@dataclass(frozen=True)
class StepContext:
    """What one model request needs. ``stored`` is set if this step's reply is in the ledger already."""

    fenced: bool
    message: str
    model: str
    policies: Mapping[str, str]
    history: tuple[PastTurn, ...]
    notices: tuple[str, ...]
    stored: tuple[StoredCall, ...] | None


def step_context(connection: Connection, ref: StepRef) -> StepContext:
    """Return what the model is to be asked in this step of its turn.

    ``history`` holds the conversation's earlier turns and, last, this one as far as it has come.
    """
    turn = _turn(connection, ref)
    stored = connection.execute(
        select(schema.steps.c.step).where(
            (schema.steps.c.tenant == ref.tenant)
            & (schema.steps.c.turn == ref.turn)
            & (schema.steps.c.step == ref.step)
        )
    ).one_or_none()
    return StepContext(
        fenced=turn.fenced or turn.state is not TurnState.RUNNING,
        message=load(turn.message),
        model=turn.model,
        policies=load_object(turn.policies),
        history=_history(connection, turn),
        notices=_notices(connection, turn),
        stored=None if stored is None else _stored_calls(connection, ref),
    )


def append_text(connection: Connection, ref: StepRef, text: str, *, now: datetime) -> bool:
    """Add text to the stream of events; False once the turn is fenced, and then nothing is added."""
    unit = TurnUnit.hold_running(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now)
    if unit is None:
        return False
    unit.emit("text_delta", {"step": ref.step, "text": text})
    return True


def restart_step(connection: Connection, ref: StepRef, attempt: int, *, now: datetime) -> bool:
    """Say in the stream that this step's text so far is void; False once the turn is fenced."""
    unit = TurnUnit.hold_running(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now)
    if unit is None:
        return False
    unit.emit("step_restarted", {"step": ref.step, "attempt": attempt})
    return True


def record_reply(connection: Connection, ref: StepRef, reply: NewReply, *, now: datetime) -> bool:
    """Store a whole reply with its calls; False once the turn is fenced: no call of it is then run.

    A reply that is stored already stays as it is: a second attempt of the same request must not put
    other calls in place of those that are under way.
    """
    unit = TurnUnit.hold_running(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now)
    if unit is None:
        return False
    table = schema.steps
    present = connection.execute(
        select(table.c.step).where(
            (table.c.tenant == ref.tenant) & (table.c.turn == ref.turn) & (table.c.step == ref.step)
        )
    ).one_or_none()
    if present is not None:
        return True
    connection.execute(
        insert(table).values(
            tenant=ref.tenant,
            turn=ref.turn,
            step=ref.step,
            text=dump(reply.text),
            finish=reply.finish,
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
            at=now,
        )
    )
    for index, call in enumerate(reply.calls):
        _insert_call(connection, ref, index, call)
    return True


def record_result(
    connection: Connection, ref: CallRef, result: object, *, is_error: bool, now: datetime
) -> None:
    """Store the result of a call that has no effect; the first one stays."""
    TurnUnit.hold(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now)
    table = schema.calls
    connection.execute(
        update(table)
        .where(
            (table.c.tenant == ref.tenant)
            & (table.c.turn == ref.turn)
            & (table.c.step == ref.step)
            & (table.c.index == ref.index)
            & table.c.result.is_(None)
        )
        .values(result=dump_outcome(result), is_error=is_error)
    )


def _insert_call(connection: Connection, ref: StepRef, index: int, call: NewCall) -> None:
    table = schema.calls
    occurrence = 1
    if call.repeatable:
        # Counted over the calls as they are stored, in their order, so that it doesn't depend on which
        # of two parallel calls comes first.
        occurrence += connection.execute(
            select(func.count()).where(
                (table.c.tenant == ref.tenant)
                & (table.c.turn == ref.turn)
                & (table.c.tool == dump(call.tool))
                & (table.c.digest == call.digest)
            )
        ).scalar_one()
    connection.execute(
        insert(table).values(
            tenant=ref.tenant,
            turn=ref.turn,
            step=ref.step,
            index=index,
            call_id=dump(call.call_id),
            tool=dump(call.tool),
            arguments=dump(call.arguments),
            kind=call.kind,
            digest=call.digest,
            occurrence=occurrence,
            result=None if call.result is None else dump_outcome(call.result),
            is_error=call.result is not None,
        )
    )


def _turn(connection: Connection, ref: StepRef) -> TurnRow:
    table = schema.turns
    return turn_row(
        connection.execute(
            select(table).where((table.c.tenant == ref.tenant) & (table.c.turn == ref.turn))
        ).one()
    )


def _stored_calls(connection: Connection, ref: StepRef) -> tuple[StoredCall, ...]:
    table = schema.calls
    rows = connection.execute(
        select(table, table.c.index.label("call"))
        .where((table.c.tenant == ref.tenant) & (table.c.turn == ref.turn) & (table.c.step == ref.step))
        .order_by(table.c.index)
    )
    return tuple(
        StoredCall(
            row.call,
            load(row.tool),
            load(row.arguments),
            row.kind,
            answered=row.result is not None,
        )
        for row in rows
    )


def _history(connection: Connection, turn: TurnRow) -> tuple[PastTurn, ...]:
    table, steps, calls, effects = schema.turns, schema.steps, schema.calls, schema.effects
    turns = [
        turn_row(row)
        for row in connection.execute(
            select(table)
            .where(
                (table.c.tenant == turn.tenant)
                & (table.c.user == turn.user)
                & (table.c.conversation == turn.conversation)
                & (table.c.position <= turn.position)
            )
            .order_by(table.c.position)
        )
    ]
    ids = [row.turn for row in turns]
    rows = {
        row.effect: row
        for row in (
            effect_row(found)
            for found in connection.execute(
                select(effects).where((effects.c.tenant == turn.tenant) & effects.c.turn.in_(ids))
            )
        )
    }
    by_step: dict[tuple[str, int], list[PastCall]] = {}
    for call in connection.execute(
        select(calls)
        .where((calls.c.tenant == turn.tenant) & calls.c.turn.in_(ids))
        .order_by(calls.c.turn, calls.c.step, calls.c.index)
    ):
        text, is_error = _call_result(
            call.result, rows.get(call.effect), is_error=call.is_error, repeated=call.repeated
        )
        by_step.setdefault((call.turn, call.step), []).append(
            PastCall(load(call.call_id), load(call.tool), load(call.arguments), text, is_error)
        )
    by_turn: dict[str, list[PastStep]] = {}
    for step in connection.execute(
        select(steps)
        .where((steps.c.tenant == turn.tenant) & steps.c.turn.in_(ids))
        .order_by(steps.c.turn, steps.c.step)
    ):
        by_turn.setdefault(step.turn, []).append(
            PastStep(load(step.text), tuple(by_step.get((step.turn, step.step), ())))
        )
    return tuple(PastTurn(load(row.message), row.state, tuple(by_turn.get(row.turn, ()))) for row in turns)


def _call_result(
    result: str | None,
    effect: EffectRow | None,
    *,
    is_error: bool,
    repeated: bool,
) -> tuple[str, bool]:
    if effect is not None:
        return effect_result(
            effect.state,
            result=_text(load(effect.result)) if effect.result is not None else None,
            error=effect.error,
            repeated=repeated,
            title=effect.title,
            key=effect.key,
        )
    if result is not None:
        return _text(load(result)), is_error
    return "not run: the turn was stopped before this call", True


def _text(value: object) -> str:
    return value if isinstance(value, str) else dump_outcome(value)


def _notices(connection: Connection, turn: TurnRow) -> tuple[str, ...]:
    table = schema.effects
    rows = connection.execute(
        select(table)
        .where(
            (table.c.tenant == turn.tenant)
            & (table.c.user == turn.user)
            & (table.c.turn != turn.turn)
            & table.c.acknowledged_at.is_(None)
            & table.c.state.in_([State.STANDING, State.UNKNOWN, State.ACCEPTED, State.COMPENSATION_FAILED])
        )
        .order_by(table.c.at)
        .limit(50)
    )
    found: Sequence[EffectRow] = [effect_row(row) for row in rows]
    return tuple(notice(row.title, row.state, row.error or row.no_undo_reason) for row in found)
