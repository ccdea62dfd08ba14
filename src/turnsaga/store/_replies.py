"""What the model said: replies, their calls, the text as it streams, and the history that is made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, Final

from sqlalchemy import Connection, bindparam, func, insert, select, update

from turnsaga.ledger import TurnState
from turnsaga.models import CallRef, StepRef, TurnRef
from turnsaga.store import schema
from turnsaga.store._payloads import dump, dump_outcome, load, load_object, load_text
from turnsaga.store._prepared import Prepared, Rows
from turnsaga.store._rows import EffectRow, TurnRow, effect_row, turn_row
from turnsaga.store._statements import CALL, TURN, listed, matches
from turnsaga.store._streaming import Writer, take_over
from turnsaga.store._unit import Taking, TurnUnit
from turnsaga.transcript import PastCall, PastStep, PastTurn, effect_result, notice

__all__ = [
    "NewCall",
    "NewReply",
    "StepContext",
    "StoredCall",
    "StoredReply",
    "record_reply",
    "record_result",
    "step_context",
]


_turns, _steps, _calls, _effects = schema.turns, schema.steps, schema.calls, schema.effects
_STEP: Final = Prepared(select(_steps.c.step).where(matches(_steps.c.tenant, _steps.c.turn, _steps.c.step)))
_ADD_STEP: Final = Prepared(insert(_steps))
_ADD_CALL: Final = Prepared(insert(_calls))
_SET_RESULT: Final = Prepared(update(_calls).where(CALL & _calls.c.result.is_(None)))
_SAME_CALLS: Final = Prepared(
    select(func.count()).where(matches(_calls.c.tenant, _calls.c.turn, _calls.c.tool, _calls.c.digest))
)
_CALLS_OF_STEP: Final = Prepared(
    select(_calls, _calls.c.index.label("call"))
    .where(matches(_calls.c.tenant, _calls.c.turn, _calls.c.step))
    .order_by(_calls.c.index)
)
_CONVERSATION: Final = Prepared(
    select(_turns)
    .where(
        matches(_turns.c.tenant, _turns.c.user, _turns.c.conversation)
        & (_turns.c.position <= bindparam("up_to"))
    )
    .order_by(_turns.c.position)
)
# As many names as a list holds, so that its text stays the same and every plan goes by the turn.
_LIST: Final = tuple(f"turn_{place}" for place in range(8))
_EFFECTS_OF_TURNS: Final = Prepared(
    select(_effects).where(matches(_effects.c.tenant) & listed(_effects.c.turn, _LIST))
)
_CALLS_OF_TURNS: Final = Prepared(
    select(_calls)
    .where(matches(_calls.c.tenant) & listed(_calls.c.turn, _LIST))
    .order_by(_calls.c.turn, _calls.c.step, _calls.c.index)
)
_STEPS_OF_TURNS: Final = Prepared(
    select(_steps)
    .where(matches(_steps.c.tenant) & listed(_steps.c.turn, _LIST))
    .order_by(_steps.c.turn, _steps.c.step)
)
_TO_NOTICE: Final = Prepared(
    select(_effects)
    .where(
        matches(_effects.c.tenant, _effects.c.user)
        & (_effects.c.turn != bindparam("turn_is"))
        & _effects.c.acknowledged_at.is_(None)
        & schema.one_of(_effects.c.state, schema.OUTSTANDING)
    )
    .order_by(_effects.c.at)
    .limit(50)
)


@dataclass(frozen=True, kw_only=True)
class NewCall:
    """One call of a reply. ``kind`` is effect, read or refused; a refused one has its ``result``.

    ``again`` marks a call that is an effect of its own although an equal one came before: its tool is
    repeatable, or the model asks for it on purpose.
    """

    call_id: str
    tool: str
    arguments: str
    kind: str
    digest: str | None = None
    again: bool = False
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
    """A call as it is stored. ``answered`` says that it has its result already.

    ``occurrence`` counts equal calls of the turn that are effects of their own, from 1.
    """

    index: int
    tool: str
    arguments: str
    kind: str
    answered: bool
    occurrence: int = 1


@dataclass(frozen=True)
class StoredReply:
    """The calls of a reply that is in the ledger."""

    calls: tuple[StoredCall, ...]


@dataclass(frozen=True)
class StepContext:
    """What one model request needs. ``stored`` is set if this step's reply is in the ledger already."""

    fenced: bool
    message: str
    model: str
    policies: Mapping[str, str]
    history: tuple[PastTurn, ...]
    notices: tuple[str, ...]
    stored: StoredReply | None


def step_context(connection: Connection, ref: StepRef, *, now: datetime) -> StepContext:
    """Return what the model is to be asked in this step of its turn.

    ``history`` holds the conversation's earlier turns and, last, this one as far as it has come. A turn's
    first step notes that it has begun: from then on it isn't simply started again if its run is missing.
    """
    found = TURN.ask(connection, {"tenant_is": ref.tenant, "turn_is": ref.turn})
    stored = _STEP.ask(connection, _step(ref)).one_or_none()
    turn = turn_row(found.one())
    to_notice = _ask_notices(connection, turn)
    if turn.begun_at is None:
        TurnUnit.hold(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now).set_turn(begun_at=now)
    return StepContext(
        fenced=turn.fenced or turn.state is not TurnState.RUNNING,
        message=load_text(turn.message),
        model=turn.model,
        policies=load_object(turn.policies),
        # Of a conversation that has just begun there is nothing to read but what is read already.
        history=(PastTurn(load_text(turn.message), turn.state, ()),)
        if turn.position == 1 and ref.step == 1 and stored is None
        else _history(connection, turn),
        notices=_notices(to_notice),
        stored=None if stored is None else _stored(connection, ref),
    )


def record_reply(
    connection: Connection, ref: StepRef, reply: NewReply, *, by: Writer | None = None, now: datetime
) -> StoredReply | None:
    """Store a whole reply, and return it; None once the turn is fenced: none of them is then run.

    A reply that is stored already stays as it is: a second attempt of the same request must not put
    other calls in place of those that are under way.

    Raises:
        StaleStep: a later attempt than ``by`` writes this step.
    """
    taking = Taking(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now, running=True)
    stored = _STEP.ask(connection, _step(ref))
    unit = taking.unit()
    if unit is None:
        return None
    if stored.one_or_none() is not None:
        return _stored(connection, ref)
    if by is not None and (unit.turn.writer or "").startswith(f"{ref.step}/"):
        # Text of an earlier attempt is void even if this reply has none.
        take_over(unit, ref, by)
    _ADD_STEP.run_later(
        connection,
        {
            "tenant": ref.tenant,
            "turn": ref.turn,
            "step": ref.step,
            "text": dump(reply.text),
            "finish": reply.finish,
            "input_tokens": reply.input_tokens,
            "output_tokens": reply.output_tokens,
            "at": now,
        },
    )
    rows = _call_rows(connection, ref, reply.calls)
    for row in rows:
        _ADD_CALL.run_later(connection, row)
    return StoredReply(
        tuple(
            StoredCall(
                index,
                call.tool,
                call.arguments,
                call.kind,
                answered=call.result is not None,
                occurrence=row["occurrence"],
            )
            for index, (call, row) in enumerate(zip(reply.calls, rows, strict=True))
        )
    )


def record_result(
    connection: Connection, ref: CallRef, result: object, *, is_error: bool, now: datetime
) -> None:
    """Store the result of a call that has no effect; the first one stays."""
    TurnUnit.hold(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now)
    named = {**_step(ref), "index_is": ref.index}
    _SET_RESULT.run_later(connection, {**named, "result": dump_outcome(result), "is_error": is_error})


def _call_rows(connection: Connection, ref: StepRef, calls: Sequence[NewCall]) -> list[dict[str, Any]]:
    # Occurrences are counted over the calls as they are stored, in their order, so that it doesn't depend
    # on which of two parallel calls comes first.
    seen: dict[tuple[str, str | None], int] = {}
    rows: list[dict[str, Any]] = []
    for index, call in enumerate(calls):
        occurrence = 1
        if call.again:
            same = (call.tool, call.digest)
            if same not in seen:
                seen[same] = _SAME_CALLS.run(
                    connection,
                    {
                        "tenant_is": ref.tenant,
                        "turn_is": ref.turn,
                        "tool_is": dump(call.tool),
                        "digest_is": call.digest,
                    },
                ).scalar_one()
            seen[same] += 1
            occurrence = seen[same]
        rows.append(
            {
                "tenant": ref.tenant,
                "turn": ref.turn,
                "step": ref.step,
                "index": index,
                "call_id": dump(call.call_id),
                "tool": dump(call.tool),
                "arguments": dump(call.arguments),
                "kind": call.kind,
                "digest": call.digest,
                "occurrence": occurrence,
                "result": None if call.result is None else dump_outcome(call.result),
                "is_error": call.result is not None,
            }
        )
    return rows


def _step(ref: StepRef | CallRef) -> dict[str, Any]:
    return {"tenant_is": ref.tenant, "turn_is": ref.turn, "step_is": ref.step}


def _stored(connection: Connection, ref: StepRef) -> StoredReply:
    rows = _CALLS_OF_STEP.run(connection, _step(ref))
    calls = tuple(
        StoredCall(
            row.call,
            load(row.tool),
            load(row.arguments),
            row.kind,
            answered=row.result is not None,
            occurrence=row.occurrence,
        )
        for row in rows
    )
    return StoredReply(calls)


def _history(connection: Connection, turn: TurnRow) -> tuple[PastTurn, ...]:
    conversation = {
        "tenant_is": turn.tenant,
        "user_is": turn.user,
        "conversation_is": turn.conversation,
        "up_to": turn.position,
    }
    turns = [turn_row(row) for row in _CONVERSATION.run(connection, conversation)]
    effects, calls, steps = (
        _ask_of(connection, statement, turns)
        for statement in (_EFFECTS_OF_TURNS, _CALLS_OF_TURNS, _STEPS_OF_TURNS)
    )
    rows = {row.effect: row for row in map(effect_row, chain.from_iterable(effects))}
    by_step: dict[tuple[str, int], list[PastCall]] = {}
    for call in chain.from_iterable(calls):
        text, is_error = _call_result(
            call.result, rows.get(call.effect), is_error=call.is_error, repeated=call.repeated
        )
        by_step.setdefault((call.turn, call.step), []).append(
            PastCall(load_text(call.call_id), load_text(call.tool), load_text(call.arguments), text, is_error)
        )
    by_turn: dict[str, list[PastStep]] = {}
    for step in chain.from_iterable(steps):
        by_turn.setdefault(step.turn, []).append(
            PastStep(load_text(step.text), tuple(by_step.get((step.turn, step.step), ())))
        )
    return tuple(
        PastTurn(load_text(row.message), row.state, tuple(by_turn.get(row.turn, ()))) for row in turns
    )


def _ask_of(connection: Connection, statement: Prepared, turns: Sequence[TurnRow]) -> list[Rows]:
    """Ask for what these turns of one conversation have, in lists of a fixed length."""
    asked: list[Rows] = []
    for first in range(0, len(turns), len(_LIST)):
        some = [row.turn for row in turns[first : first + len(_LIST)]]
        whole = some + some[-1:] * (len(_LIST) - len(some))
        named = {"tenant_is": turns[0].tenant, **dict(zip(_LIST, whole, strict=True))}
        asked.append(statement.ask(connection, named))
    return asked


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
            held_for=effect.held_for,
            unasked=effect.commit_order is None,
            result=_text(effect.result) if effect.result is not None else None,
            error=effect.error,
            repeated=repeated,
            title=effect.title,
            key=effect.key,
        )
    if result is not None:
        return _text(result), is_error
    return "not run: the turn was stopped before this call", True


def _text(result: str) -> str:
    return load_text(result) if result.startswith('"') else result


def _ask_notices(connection: Connection, turn: TurnRow) -> Rows:
    return _TO_NOTICE.ask(connection, {"tenant_is": turn.tenant, "user_is": turn.user, "turn_is": turn.turn})


def _notices(found: Rows) -> tuple[str, ...]:
    rows: Sequence[EffectRow] = [effect_row(row) for row in found]
    return tuple(notice(row.title, row.state, row.error or row.no_undo_reason) for row in rows)
