"""The activities of each registered tool: ``<tool>.commit``, ``.lookup``, ``.compensate`` and ``.read``.

Each attempt begins by asking the ledger what it may do, and ends by writing there what it learned. What
it returns to the workflow is a courtesy: the ledger decides.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, assert_never

import structlog
from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from turnsaga import names, settle
from turnsaga.attempts import heartbeating, untorn
from turnsaga.errors import (
    OUTCOME_UNKNOWN,
    ChangedSince,
    InvalidRequest,
    NotApplied,
    StoreUnavailable,
    ToolOutcome,
    UndoRefused,
)
from turnsaga.keys import canonical_json, digest, effect_id, effect_key
from turnsaga.ledger import State
from turnsaga.models import CallOutcome, CallPlan, CallRef, EffectRef, Resolution
from turnsaga.store import (
    CallContext,
    Claim,
    CommitOutcome,
    EffectRow,
    NewEffect,
    SqlStore,
    UndoOutcome,
    Verdict,
    brief,
    load_object,
    plan_row,
)
from turnsaga.tools import (
    Call,
    Committed,
    EffectTool,
    Found,
    Keyed,
    Missing,
    Prepared,
    ReadTool,
    Running,
    Tools,
    Undone,
    parse_arguments,
    sentence,
)

__all__ = ["ToolActivities", "call_plan"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_POLL_S: Final = 0.1
_MARGIN: Final = timedelta(seconds=10)
# What the protocol foresees is no alarm in logs and metrics.
_EXPECTED: Final = ApplicationErrorCategory.BENIGN
_INSIST: Final = timedelta(seconds=60)


def call_plan(tool: EffectTool[Any] | ReadTool[Any], index: int, arguments: BaseModel) -> CallPlan:
    """Return how a workflow runs one call of a tool: its sentences and its bounds."""
    values = dict(arguments)
    if isinstance(tool, ReadTool):
        attempt = tool.timeout + _MARGIN
        return CallPlan(
            index=index,
            tool=tool.name,
            kind="read",
            summary=sentence(tool.says, values),
            attempt_ms=_ms(attempt),
            total_ms=_ms(4 * attempt),
        )
    limits = tool.limits
    attempt = limits.send_by + limits.call + limits.wait + _MARGIN
    return CallPlan(
        index=index,
        tool=tool.name,
        kind="effect",
        summary=sentence(tool.summary or tool.says, values),
        undo_summary=sentence(tool.undo_says or "", values),
        attempt_ms=_ms(attempt),
        total_ms=_ms(attempt * (limits.sends + 1)),
        undo_attempt_ms=_ms(limits.undo_call + _MARGIN),
        undo_total_ms=_ms(limits.undo_total),
        resolve_ms=_ms(limits.resolve),
    )


class ToolActivities:
    """Activities over registered tools and a ledger."""

    def __init__(self, tools: Tools, store: SqlStore) -> None:
        self._tools = tools
        self._store = store

    def all(self) -> Sequence[Callable[..., object]]:
        """Return the activities of every registered tool, for a worker."""
        found: list[Callable[..., object]] = []
        for tool in self._tools:
            if isinstance(tool, ReadTool):
                found.append(self._read_activity(tool))
                continue
            found.append(self._commit_activity(tool))
            if tool.lookup is not None:
                found.append(self._lookup_activity(tool))
            if tool.compensate is not None:
                found.append(self._compensate_activity(tool))
        return found

    # Activities are closures over their tool: one type a tool and phase, as they read in the Temporal UI.

    def _commit_activity(self, tool: EffectTool[Any]) -> Callable[..., object]:
        @activity.defn(name=names.commit_activity(tool.name))
        async def commit(ref: CallRef) -> CallOutcome:
            async with heartbeating():
                return await self._commit(tool, ref)

        return commit

    def _lookup_activity(self, tool: EffectTool[Any]) -> Callable[..., object]:
        @activity.defn(name=names.lookup_activity(tool.name))
        async def lookup(ref: EffectRef) -> Resolution:
            async with heartbeating():
                return await self._look_up(tool, ref)

        return lookup

    def _compensate_activity(self, tool: EffectTool[Any]) -> Callable[..., object]:
        @activity.defn(name=names.compensate_activity(tool.name))
        async def compensate(ref: EffectRef) -> CallOutcome:
            async with heartbeating():
                return await self._compensate(tool, ref)

        return compensate

    def _read_activity(self, tool: ReadTool[Any]) -> Callable[..., object]:
        @activity.defn(name=names.read_activity(tool.name))
        async def read(ref: CallRef) -> None:
            async with heartbeating():
                await self._read(tool, ref)

        return read

    # Commit

    async def _commit(self, tool: EffectTool[Any], ref: CallRef) -> CallOutcome:
        context = await self._store.call_context(ref)
        new: NewEffect | None = None
        if context.effect is None and not context.fenced:
            if context.result is not None:
                return CallOutcome()
            new = await self._prepare(tool, ref, context)
            if new is None:
                return CallOutcome()
        waited_until = _now() + tool.limits.wait
        while True:
            claim = await self._store.claim_commit(ref, new)
            match claim.verdict:
                case Verdict.FENCED:
                    return CallOutcome(effect=None if claim.row is None else brief(claim.row), fenced=True)
                case Verdict.SEND:
                    return await self._send(tool, _row(claim))
                case Verdict.STORED:
                    return CallOutcome(effect=brief(_row(claim)))
                case Verdict.REPEATED:
                    row = _row(claim)
                    if row.state not in {State.PREPARED, State.COMMITTING} or _now() >= waited_until:
                        return CallOutcome(effect=brief(row))
                case Verdict.BUSY:
                    if _now() >= waited_until:
                        why = f"not sent: waited {tool.limits.wait} for another effect ({claim.blocker})"
                        return CallOutcome(effect=brief(await self._store.drop(_row(claim).ref, why)))
                case _:
                    assert_never(claim.verdict)
            await asyncio.sleep(_POLL_S)

    async def _prepare(self, tool: EffectTool[Any], ref: CallRef, context: CallContext) -> NewEffect | None:
        """Return the effect to insert, or None once the call's refusal is stored as its result."""
        try:
            arguments = parse_arguments(tool, context.arguments)
            values = arguments.model_dump(mode="json")
            key = effect_key(
                tool=tool.name,
                arguments=values,
                tenant=ref.tenant,
                user=context.user,
                nonce=context.nonce,
                occurrence=context.occurrence,
            )
            prepared = await self._prepared(
                tool, arguments, _call_of(ref, context.user, key, tool.limits.call)
            )
            canonical_json(prepared.request)
            resources = tuple(tool.resources(arguments)) if tool.resources is not None else ()
        except (InvalidRequest, NotApplied) as error:
            await self._store.record_result(ref, f"not run: {error}", is_error=True)
            return None
        except Exception as error:
            if activity.info().attempt >= tool.limits.sends:
                why = f"not run: it could not be prepared ({type(error).__name__})"
                await self._store.record_result(ref, why, is_error=True)
                return None
            raise ApplicationError(
                f"{tool.name} could not be prepared ({type(error).__name__}); it is tried again",
                type="PrepareFailed",
            ) from None
        repeat, limits = tool.repeat, tool.limits
        return NewEffect(
            tool=tool.name,
            system=tool.system,
            identity=prepared.identity,
            arguments=values,
            arguments_digest=digest(values),
            occurrence=context.occurrence,
            key=key,
            request=prepared.request,
            resources=resources,
            plan=call_plan(tool, ref.index, arguments),
            policy=str(context.policies.get(tool.name, "immediate")),
            reversible=tool.reversible,
            keyed=tool.keyed,
            can_look_up=tool.lookup is not None,
            key_dies_with_undo=isinstance(repeat, Keyed) and repeat.dies_with_undo,
            undo_keyed=isinstance(tool.undo_repeat, Keyed),
            key_life_ms=_ms(repeat.lifetime) if isinstance(repeat, Keyed) else None,
            send_by_ms=_ms(limits.send_by),
            landing_ms=_ms(limits.landing_window),
            max_sends=limits.sends if tool.keyed else 1,
            max_undo_sends=limits.undo_sends,
            title=sentence(tool.says, dict(arguments)),
            no_undo_reason=tool.irreversible_because,
        )

    async def _prepared(self, tool: EffectTool[Any], arguments: BaseModel, call: Call) -> Prepared:
        prepared = Prepared(arguments.model_dump(mode="json"))
        if tool.prepare is not None:
            async with asyncio.timeout(tool.limits.call.total_seconds()):
                prepared = await tool.prepare(arguments, call)
        if prepared.identity is None and tool.identity is not None:
            prepared = Prepared(prepared.request, tool.identity(arguments))
        return prepared

    async def _send(self, tool: EffectTool[Any], row: EffectRow) -> CallOutcome:
        log = _log.bind(turn=row.turn, effect=row.effect, key=row.key, tool=tool.name)
        outcome = await self._sent(tool, row, log)
        stored = await self._recorded(row, outcome)
        log.info("commit.recorded", state=stored.state.value, applied=outcome.applied)
        undecided = stored.state in {State.COMMITTING, State.UNKNOWN} and not stored.owned
        action = settle.resolution(plan_row(stored, undo_given_up=False), fenced=False, now=_now())
        if undecided and action is settle.Action.SEND_AGAIN:
            raise ApplicationError(
                f"{row.summary}: no answer that proves anything; it is sent again under its key",
                type=OUTCOME_UNKNOWN,
                category=_EXPECTED,
            )
        return CallOutcome(effect=brief(stored))

    async def _recorded(self, row: EffectRow, outcome: CommitOutcome) -> EffectRow:
        """Write an outcome, insisting while the ledger is away: it is known nowhere else."""
        give_up = _now() + _INSIST
        while True:
            try:
                return await self._store.record_commit(row.ref, row.token, outcome)
            except StoreUnavailable:
                if _now() >= give_up:
                    raise

    async def _sent(
        self, tool: EffectTool[Any], row: EffectRow, log: structlog.stdlib.BoundLogger
    ) -> CommitOutcome:
        # An attempt that was paused past its moment must not send: whether its request can still land
        # is judged by others from this instant on.
        if row.send_by is not None and _now() >= row.send_by:
            return CommitOutcome(
                applied=False, error="not sent: the attempt was held up past its time to send"
            )
        try:
            done = await untorn(
                tool.commit(load_object(row.request), _call(row, row.key, tool.limits.call)),
                within=tool.limits.call,
            )
        except NotApplied as error:
            return CommitOutcome(applied=False, error=error.reason)
        except ToolOutcome as error:
            return CommitOutcome(applied=None, error=error.reason)
        except Exception as error:
            # The text of a foreign error can hold headers and bodies; its type is enough for people.
            log.warning("commit.no_answer", error_type=type(error).__name__)
            log.debug("commit.no_answer.details", exc_info=error)
            return CommitOutcome(
                applied=None, error=f"no answer that proves anything ({type(error).__name__})"
            )
        if isinstance(done, Committed):
            return CommitOutcome(applied=True, receipt=done.receipt, result=done.result)
        # It returned, so it was applied, and what it returned can't be used: known, and hard to undo.
        log.error("commit.returned_no_receipt", returned=type(done).__name__)
        return CommitOutcome(applied=True, receipt={"returned": type(done).__name__}, result=None)

    # Look-up

    async def _look_up(self, tool: EffectTool[Any], ref: EffectRef) -> Resolution:
        row = await self._store.begin_lookup(ref)
        if row.state is not State.UNKNOWN or tool.lookup is None:
            return Resolution(effect=brief(row), decided=row.state is not State.UNKNOWN)
        asked_at = _now()
        try:
            answer = await untorn(
                tool.lookup(load_object(row.request), _call(row, row.key, tool.limits.call)),
                within=tool.limits.call,
            )
        except Exception as error:
            raise ApplicationError(
                f"{row.summary}: can't be asked about now ({type(error).__name__}); it is asked again",
                type=OUTCOME_UNKNOWN,
                category=_EXPECTED,
            ) from None
        match answer:
            case Found(receipt=receipt, result=result):
                found = CommitOutcome(applied=True, receipt=receipt, result=result)
                row = await self._store.record_lookup(ref, row.token, found, asked_at=asked_at)
            case Missing():
                row = await self._store.record_lookup(ref, row.token, None, asked_at=asked_at)
            case Running():
                pass
            case _:
                assert_never(answer)
        if row.state is State.UNKNOWN:
            raise ApplicationError(
                f"{row.summary}: not found yet, and may still take effect; it is asked again",
                type=OUTCOME_UNKNOWN,
                category=_EXPECTED,
                next_retry_delay=_until(row.wire_until),
            )
        return Resolution(effect=brief(row), decided=True)

    # Undo

    async def _compensate(self, tool: EffectTool[Any], ref: EffectRef) -> CallOutcome:
        row, may_send = await self._store.claim_undo(ref)
        if not may_send:
            return CallOutcome(effect=brief(row))
        outcome = await self._undone(tool, row)
        if outcome is None:
            raise ApplicationError(
                f"{row.summary}: its undo gave no answer that proves anything",
                type=OUTCOME_UNKNOWN,
                category=_EXPECTED,
            )
        stored = await self._undo_recorded(row, outcome)
        _log.info(
            "undo.recorded",
            turn=row.turn,
            effect=row.effect,
            key=row.undo_key,
            tool=tool.name,
            state=stored.state.value,
        )
        if outcome.again:
            raise ApplicationError(
                f"{row.summary}: not undone yet ({outcome.error})", type="UndoNotApplied", category=_EXPECTED
            )
        return CallOutcome(effect=brief(stored))

    async def _undo_recorded(self, row: EffectRow, outcome: UndoOutcome) -> EffectRow:
        give_up = _now() + _INSIST
        while True:
            try:
                return await self._store.record_undo(row.ref, row.token, outcome)
            except StoreUnavailable:
                if _now() >= give_up:
                    raise

    async def _undone(self, tool: EffectTool[Any], row: EffectRow) -> UndoOutcome | None:
        """Return what the undo learned, or None if nothing is known."""
        if tool.compensate is None:
            return UndoOutcome(error="this version of its tool has no undo any more")
        request, receipt = load_object(row.request), load_object(row.receipt)
        call = _call(row, row.undo_key, tool.limits.undo_call)
        try:
            done = await untorn(tool.compensate(request, receipt, call), within=tool.limits.undo_call)
            if not isinstance(done, Undone) or not done.evidence:  # type: ignore[redundant-expr]  # a tool's own code may break its types
                # It returned and shows nothing for it: an undo that does nothing looks just like this.
                return UndoOutcome(error="its undo returned no evidence that it was undone")
            if tool.check_undone is not None and not await untorn(
                tool.check_undone(request, receipt, call), within=tool.limits.undo_call
            ):
                return UndoOutcome(error="its undo was answered, and reading back shows it still there")
        except UndoRefused as error:
            return UndoOutcome(error=error.reason)
        except ChangedSince as error:
            return UndoOutcome(overtaken=True, error=error.reason)
        except NotApplied as error:
            return UndoOutcome(again=True, error=error.reason)
        except Exception as error:
            _log.warning(
                "undo.no_answer",
                turn=row.turn,
                effect=row.effect,
                tool=tool.name,
                error_type=type(error).__name__,
            )
            return None
        return UndoOutcome(undone=True, evidence=done.evidence)

    # Reads

    async def _read(self, tool: ReadTool[Any], ref: CallRef) -> None:
        context = await self._store.call_context(ref)
        if context.result is not None or context.fenced:
            return
        try:
            arguments = parse_arguments(tool, context.arguments)
            call = _call_of(ref, context.user, key="", within=tool.timeout)
            async with asyncio.timeout(tool.timeout.total_seconds()):
                result: object = await tool.read(arguments, call)
        except (InvalidRequest, ToolOutcome) as error:
            await self._store.record_result(ref, str(error), is_error=True)
        except Exception as error:
            if activity.info().attempt < 3:
                raise ApplicationError(
                    f"{tool.name} failed ({type(error).__name__}); it is tried again"
                ) from None
            await self._store.record_result(ref, f"failed ({type(error).__name__})", is_error=True)
        else:
            await self._store.record_result(ref, result, is_error=False)


def _now() -> datetime:
    return datetime.now(UTC)


def _ms(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)


def _until(instant: datetime | None) -> timedelta:
    """Return how long to wait before asking again: not long before it can be decided, nor too often."""
    left = timedelta(0) if instant is None else instant - _now()
    return min(max(left, timedelta(milliseconds=250)), timedelta(seconds=2))


def _row(claim: Claim) -> EffectRow:
    if claim.row is None:
        raise RuntimeError(f"the gate answered {claim.verdict!r} without a row")
    return claim.row


def _call(row: EffectRow, key: str, within: timedelta) -> Call:
    return Call(
        tenant=row.tenant,
        user=row.user,
        turn=row.turn,
        effect=row.effect,
        key=key,
        effect_key=row.key,
        remaining=within,
    )


def _call_of(ref: CallRef, user: str, key: str, within: timedelta) -> Call:
    return Call(
        tenant=ref.tenant,
        user=user,
        turn=ref.turn,
        effect=effect_id(turn=ref.turn, key=key),
        key=key,
        effect_key=key,
        remaining=within,
    )
