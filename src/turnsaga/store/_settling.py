"""Undo, and the question "what next?" of a turn that settles."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, func, literal_column, select

from turnsaga import settle
from turnsaga.errors import IllegalTransition, NotFound, StaleWrite
from turnsaga.ledger import CLOSED, IN_DOUBT, OPEN_TURN, Event, State, TurnEventName, TurnState
from turnsaga.models import EffectRef, FenceAnswer, FenceRequest, NextSteps, Principal, TurnRef
from turnsaga.settle import OnUnknown
from turnsaga.store import schema
from turnsaga.store._asking import ask_effects, effects_of
from turnsaga.store._handing import CANT_BE_ASKED, hand_over_row
from turnsaga.store._holding import ABORTED
from turnsaga.store._payloads import dump_outcome
from turnsaga.store._prepared import Prepared
from turnsaga.store._queue import ask_next, begin_next
from turnsaga.store._rows import EffectRow, brief, effect_row, plan_row
from turnsaga.store._statements import matches
from turnsaga.store._turns import emit_settled, planned, write_fence
from turnsaga.store._undoing import claimed_undo
from turnsaga.store._unit import Numbers, TurnUnit

__all__ = ["UndoOutcome", "UndoRecorded", "fence", "next_steps", "owned_steps", "record_undo"]


@dataclass(frozen=True)
class UndoOutcome:
    """What an attempt to undo learned.

    ``undone``; ``overtaken`` by somebody's change; ``again``, proved not done and worth another try;
    ``running``, the system says that it is still at it; or none of them, refused for good.
    """

    undone: bool = False
    overtaken: bool = False
    again: bool = False
    running: bool = False
    evidence: Mapping[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True)
class UndoRecorded:
    """The effect after an undo's outcome; ``next`` is None if the outcome settled nothing."""

    row: EffectRow
    next: NextSteps | None


_effects = schema.effects
_OF_TURN: Final = matches(_effects.c.tenant, _effects.c.turn)
_others = _effects.alias("others")
# By a maximum: SQLite sets up a sorter for an ORDER BY, which costs more than all the rest of it.
_LAST_ORDER: Final = (
    select(func.max(_others.c.commit_order))
    .where(matches(_others.c.tenant, _others.c.turn) & (_others.c.state == literal_column("'committed'")))
    .scalar_subquery()
)
_UNSETTLED: Final = Prepared(
    select(_effects)
    .where(
        _OF_TURN
        & (~schema.one_of(_effects.c.state, sorted(CLOSED)) | (_effects.c.commit_order == _LAST_ORDER))
    )
    .order_by(_effects.c.seq)
)


def fence(
    connection: Connection, request: FenceRequest, *, now: datetime, owner: Principal | None = None
) -> FenceAnswer:
    """Write the fence if the turn runs: from this transaction's end on, no gate opens.

    The first one counts. On a turn that is settling or has ended it changes nothing.

    Raises:
        NotFound: there is no such turn, or it isn't the owner's.
    """
    unit = TurnUnit.hold(
        connection, TurnRef(tenant=request.tenant, turn=request.turn), now, Numbers(events=1)
    )
    if owner is not None and (unit.turn.tenant, unit.turn.user) != (owner.tenant, owner.user):
        raise NotFound("turn", request.turn)
    answer = write_fence(unit, request)
    return answer.model_copy(update={"next": _first_undo(unit, answer)}) if answer.first else answer


def _first_undo(unit: TurnUnit, fenced: FenceAnswer) -> NextSteps | None:
    """Return the undo that comes first, if it is clear by now: nothing is in flight or in doubt."""
    rows = {row.effect: row for row in _unsettled(unit)}
    plan = settle.plan([plan_row(row, undo_given_up=False) for row in rows.values()], now=unit.now)
    undone = [rows[step.effect] for step in plan.steps if step.action is settle.Action.UNDO]
    if len(undone) != 1 or undone[0].state is not State.COMMITTED:
        return None
    steps = (planned(undone[0], settle.Action.UNDO),)
    return NextSteps(steps=steps, state=unit.turn.state, briefs=fenced.briefs)


def next_steps(
    connection: Connection,
    ref: TurnRef,
    *,
    given_up: Collection[str],
    now: datetime,
    fence: FenceRequest | None = None,
) -> NextSteps:
    """Carry out what needs no call (release, leave standing, hand over), and return what does.

    When nothing is left, the turn is closed in the same transaction. ``given_up`` names effects whose
    undo was tried as often as its budget allows. Asked of a turn that has settled before, it goes on
    with rows that have become committed since; asked of a completed one, it does nothing. The answer's
    briefs are of all effects.

    Raises:
        IllegalTransition: the turn runs and isn't fenced; fence it first.
    """
    unit = TurnUnit.hold(connection, ref, now)
    if fence is not None:
        write_fence(unit, fence)
    if unit.turn.state is TurnState.RUNNING:
        raise IllegalTransition("turn", unit.turn.state, TurnEventName.SETTLED)
    if unit.turn.state is TurnState.COMPLETED:
        _stop_following(unit, unit.effects())
        answer = NextSteps(settled=True, state=unit.turn.state)
    else:
        answer = _go_on(unit, given_up)
    return answer.model_copy(update={"briefs": tuple(brief(row) for row in unit.effects())})


def _go_on(unit: TurnUnit, given_up: Collection[str] = ()) -> NextSteps:
    """Return what is to be done next, with the briefs of effects that are moved here."""
    moved: dict[str, EffectRow] = {}
    next_turn: str | None = None
    while True:
        rows = _unsettled(unit)
        plan = settle.plan(
            [plan_row(row, undo_given_up=row.effect in given_up) for row in rows], now=unit.now
        )
        by_id = {row.effect: row for row in rows}
        own = [step for step in plan.steps if step.action in settle.LEDGER_ONLY]
        if not own:
            break
        for step in own:
            moved[step.effect] = _carry_out(unit, by_id[step.effect], step.action)
    if plan.settled:
        if any(row.state is State.COMPENSATION_FAILED for row in rows):
            _show_waiting(unit, moved)
        if unit.turn.state in OPEN_TURN:
            effects, queued = ask_effects(unit.connection, unit.turn), ask_next(unit)
            unit.advance_turn(TurnEventName.SETTLED, ended_at=unit.now)
            emit_settled(unit, effects_of(effects))
            next_turn = begin_next(unit, queued)
        _stop_following(unit, rows)
    return NextSteps(
        steps=tuple(
            planned(by_id[step.effect], step.action, wait_ms=_wait_ms(step.until, unit.now))
            for step in plan.steps
        ),
        settled=plan.settled,
        state=unit.turn.state,
        briefs=tuple(brief(row) for row in moved.values()),
        next_turn=next_turn,
    )


def _unsettled(unit: TurnUnit) -> list[EffectRow]:
    """Return the effects that the plan can say something about: not all that are done with.

    Of the committed ones that is the last: so a turn of a thousand effects isn't read a thousand times.
    """
    named = {"tenant_is": unit.turn.tenant, "turn_is": unit.turn.turn}
    return [effect_row(row) for row in _UNSETTLED.run(unit.connection, named)]


def owned_steps(connection: Connection, ref: TurnRef) -> NextSteps:
    """Return look-ups of effects that were handed over in doubt: they go on being asked about."""
    rows = effects_of(ask_effects(connection, ref))
    askable = [row for row in rows if row.state is State.UNKNOWN and row.owned and _is_asked(row)]
    return NextSteps(
        steps=tuple(planned(row, settle.Action.LOOK_UP) for row in askable),
        briefs=tuple(brief(row) for row in rows),
    )


def record_undo(
    connection: Connection,
    ref: EffectRef,
    token: int,
    outcome: UndoOutcome,
    *,
    now: datetime,
    claimed: EffectRow | None = None,
) -> UndoRecorded:
    """Write what the undo that holds ``token`` learned, and go on.

    A stale token writes nothing, unless the undo was done: whoever sent it, the effect is gone.
    ``claimed`` is the row as its claim left it: as long as nobody has moved it, it needn't be read again.
    """
    unit = TurnUnit.hold(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now, Numbers(events=1))
    written = None
    if claimed is not None:
        with suppress(StaleWrite):
            written = _undone(unit, claimed, token, outcome)
    row, ended = written or _undone(unit, unit.effect(ref.effect), token, outcome)
    # In a turn that runs only this one is undone.
    return UndoRecorded(row, _go_on(unit) if ended and unit.turn.fenced else None)


def _undone(unit: TurnUnit, row: EffectRow, token: int, outcome: UndoOutcome) -> tuple[EffectRow, bool]:
    """Write an undo's outcome; the second value tells whether its effect is done with."""
    # Two runs can settle one turn (a reset beside a recovery) and take each other's claims for ever.
    if row.state is not State.COMPENSATING or (row.token != token and not outcome.undone):
        return row, False
    if outcome.again:
        # The claim is given back: the same refusal told twice must not count for a second request too.
        noted = unit.note(
            row,
            "tool_compensating",
            token=row.token + 1,
            undo_refusals=row.undo_refusals + 1,
            error=outcome.error,
        )
        return noted, False
    if outcome.running:
        # Asked again as long as the undo's time lasts, whatever its budget of sends.
        return unit.amend(row, token=row.token + 1, max_undo_sends=row.max_undo_sends + 1), False
    if outcome.undone:
        evidence = dump_outcome(outcome.evidence or {})
        row = unit.move(row, Event.UNDO_CONFIRMED, evidence=evidence, error=None)
    elif outcome.overtaken:
        row = unit.move(row, Event.UNDO_OVERTAKEN, no_undo_reason=outcome.error, error=None)
    else:
        row = unit.move(row, Event.UNDO_FAILED, owned=True, error=outcome.error)
    return row, True


def _stop_following(unit: TurnUnit, rows: Sequence[EffectRow]) -> None:
    """Take the turn off the sweeper's list once nothing of it can be asked about any more."""
    askable = any(row.state in IN_DOUBT and _is_asked(row) for row in rows)
    if unit.turn.follow and not askable:
        unit.set_turn(follow=False)


def _is_asked(row: EffectRow) -> bool:
    return row.can_look_up and row.on_unknown is not OnUnknown.PERSON


def _show_waiting(unit: TurnUnit, moved: dict[str, EffectRow]) -> None:
    """Show the effects whose undo waits behind one that failed, whose tool asks for that."""
    rows = unit.effects()
    waiting = settle.halted([plan_row(row, undo_given_up=False) for row in rows])
    failed = next(
        (row for row in reversed(rows) if row.state is State.COMPENSATION_FAILED and row.halts), None
    )
    for row in rows:
        if failed is not None and row.effect in waiting and not row.owned:
            why = f"not undone: a person has to look at what comes first ({failed.title})"
            moved[row.effect] = unit.note(row, "tool_attention", owned=True, error=why)


def _carry_out(unit: TurnUnit, row: EffectRow, action: settle.Action) -> EffectRow:
    if action is settle.Action.RELEASE:
        return unit.move(row, Event.DROPPED, held_for=None, error=ABORTED)
    if action is settle.Action.LEAVE_STANDING:
        return unit.move(row, Event.LEFT_STANDING)
    if action is settle.Action.HAND_OVER:
        return hand_over_row(unit, row, CANT_BE_ASKED)
    # Every attempt may have died before its own claim: the row still gets to its end by way of one.
    claimed = row if row.state is State.COMPENSATING else claimed_undo(unit, row)
    return unit.move(
        claimed,
        Event.UNDO_FAILED,
        token=claimed.token + 1,
        owned=True,
        error=claimed.error or "its undo could not be completed",
    )


def _wait_ms(until: datetime | None, now: datetime) -> int:
    return 0 if until is None else max(1, (until - now) // timedelta(milliseconds=1) + 1)
