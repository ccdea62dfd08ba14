"""``<tool>.commit``: one attempt to prepare and commit a call."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar, assert_never

import structlog
from structlog.contextvars import bind_contextvars
from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnsaga import settle
from turnsaga.attempts import StillGoing, bounded, started, untorn
from turnsaga.errors import (
    OUTCOME_UNKNOWN,
    InvalidRequest,
    KeyConflict,
    NotApplied,
    OutcomeUnknown,
    StillRunning,
    StoreUnavailable,
    ToolOutcome,
)
from turnsaga.keys import digest, effect_id
from turnsaga.ledger import State
from turnsaga.models import CallOutcome, CallRef
from turnsaga.store import (
    Claim,
    CommitOutcome,
    EffectRow,
    SqlStore,
    Verdict,
    brief,
    load_object,
    plan_row,
)
from turnsaga.tool_activities._common import (
    EXPECTED,
    INSIST,
    STILL_RUNNING,
    call_before,
    call_for,
    details,
    now,
    said,
    speak_of,
)
from turnsaga.tool_activities._drafts import draft, parse_call, refreshed, version_name
from turnsaga.tool_activities._stragglers import AHEAD, Stragglers
from turnsaga.tools import CommitPolicy, Committed, EffectTool, Policy, parse_arguments

__all__ = ["CommitAttempts"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
T = TypeVar("T")
_POLL_S: Final = 0.1


class CommitAttempts:
    """Attempts to commit."""

    def __init__(self, store: SqlStore, stragglers: Stragglers) -> None:
        self._store = store
        self._stragglers = stragglers

    async def prepare(self, tool: EffectTool[Any], ref: CallRef) -> CallOutcome:
        """Prepare the call, whose effect is held; nothing is sent."""
        return await self._run(tool, ref, gate=False)

    async def run(self, tool: EffectTool[Any], ref: CallRef) -> CallOutcome:
        """Prepare the call if it isn't, pass the gate, call, and write what came of it."""
        return await self._run(tool, ref, gate=True)

    async def _run(self, tool: EffectTool[Any], ref: CallRef, *, gate: bool) -> CallOutcome:
        try:
            claim = await self._claimed(tool, ref, gate=gate)
        except (InvalidRequest, NotApplied, KeyConflict) as error:
            await self._store.record_result(ref, f"not run: {said(error)}", is_error=True)
            return CallOutcome()
        except _Unprepared as error:
            why = f"could not be prepared ({error})"
            if activity.info().attempt < tool.limits.sends:
                raise ApplicationError(
                    f"{tool.name} {why}; it is tried again", type="PrepareFailed"
                ) from None
            await self._store.record_result(ref, f"not run: it {why}", is_error=True)
            return CallOutcome()
        return await self._follow(tool, ref, claim)

    async def _follow(self, tool: EffectTool[Any], ref: CallRef, claim: Claim) -> CallOutcome:
        """Act on the gate's answer; while that is "wait", ask again."""
        waited_until = now() + tool.limits.wait
        while True:
            _speak_of(claim)
            match claim.verdict:
                case Verdict.ANSWERED:
                    return CallOutcome()
                case Verdict.FENCED:
                    return CallOutcome(effect=None if claim.row is None else brief(claim.row), fenced=True)
                case Verdict.SEND:
                    return await self._send(tool, _row(claim))
                case Verdict.STORED:
                    return CallOutcome(effect=brief(_row(claim)))
                case Verdict.HELD:
                    return CallOutcome(effect=brief(_row(claim), now=now()))
                case Verdict.REPEATED:
                    row = _row(claim)
                    held = row.state is State.PREPARED and row.held_for not in {None, "resource"}
                    ends = row.state not in {State.PREPARED, State.COMMITTING}
                    if held or ends or now() >= waited_until:
                        return CallOutcome(effect=brief(row), repeated=True)
                case Verdict.OUTDATED:
                    claim = await self._prepared_anew(tool, ref, _row(claim))
                    continue
                case Verdict.BUSY:
                    if now() >= waited_until:
                        why = f"not sent: waited {tool.limits.wait} for another effect ({claim.blocker})"
                        return CallOutcome(effect=brief(await self._store.drop(_row(claim).ref, why)))
                case _:
                    assert_never(claim.verdict)
            await asyncio.sleep(_POLL_S)
            claim = await self._store.claim_commit(ref, None)

    async def _prepared_anew(self, tool: EffectTool[Any], ref: CallRef, row: EffectRow) -> Claim:
        """Prepare an effect once more that had to wait for another one, and claim it."""
        try:
            arguments = parse_arguments(tool, row.arguments)
            prepared = None
            if tool.prepare is not None:
                told = call_for(row, row.key, tool.limits.call)
                prepared = await _prepared(started(tool.prepare, arguments, told), within=tool.limits.call)
            anew = _guarded(lambda: refreshed(tool, row, arguments, prepared))
        except (InvalidRequest, NotApplied, _Unprepared) as error:
            why = f"not sent: it waited for another effect, and can't be prepared any more ({said(error)})"
            return Claim(Verdict.STORED, await self._store.drop(row.ref, why))
        return await self._store.claim_commit(ref, None, refreshed=anew)

    async def _claimed(self, tool: EffectTool[Any], ref: CallRef, *, gate: bool) -> Claim:
        """Draft the call's effect if it has none, and claim it.

        A tool that prepares nothing needs to wait for nobody, so its call is read and claimed in one
        transaction.
        """
        if tool.prepare is None:
            return await self._store.draft_and_claim(
                ref,
                lambda context: _guarded(lambda: draft(tool, ref, context, parse_call(tool, ref, context))),
                gate=gate,
            )
        context = await self._store.call_context(ref)
        if context.effect is not None or context.fenced:
            return await self._store.claim_commit(ref, None, gate=gate)
        if context.result is not None:
            return Claim(Verdict.ANSWERED)
        call = _guarded(lambda: parse_call(tool, ref, context))
        # It has no row yet; what its own code logs meanwhile is about it all the same.
        bind_contextvars(effect=effect_id(turn=ref.turn, key=call.key), key=call.key)
        told = call_before(ref, context.user, call.key, tool.limits.call)
        prepared = await _prepared(started(tool.prepare, call.arguments, told), within=tool.limits.call)
        new = _guarded(lambda: draft(tool, ref, context, call, prepared))
        return await self._store.claim_commit(ref, new, gate=gate)

    async def _send(self, tool: EffectTool[Any], row: EffectRow) -> CallOutcome:
        outcome = await self._sent(tool, row)
        stored = await self._recorded(row, outcome)
        _log.info("commit.recorded", state=stored.state.value, applied=outcome.applied)
        undecided = stored.state in {State.COMMITTING, State.UNKNOWN} and not stored.owned
        action = settle.resolution(plan_row(stored, undo_given_up=False), fenced=False, now=now())
        if undecided and action is settle.Action.SEND_AGAIN:
            raise ApplicationError(
                f"{row.summary}: no answer that proves anything; it is sent again under its key",
                type=OUTCOME_UNKNOWN,
                category=EXPECTED,
                next_retry_delay=STILL_RUNNING if outcome.running else None,
            )
        return CallOutcome(effect=brief(stored))

    async def _recorded(self, row: EffectRow, outcome: CommitOutcome) -> EffectRow:
        """Write an outcome, insisting while the ledger is away: it is known nowhere else."""
        give_up = now() + INSIST
        while True:
            try:
                return await self._store.record_commit(row.ref, row.token, outcome, claimed=row)
            except StoreUnavailable:
                if now() >= give_up:
                    raise

    async def _sent(self, tool: EffectTool[Any], row: EffectRow) -> CommitOutcome:
        stale = await _stale(tool, row)
        if stale is not None:
            return CommitOutcome(applied=False, error=stale)
        # An attempt that was paused past its moment must not send: whether its request can still land
        # is judged by others from this instant on.
        if row.send_by is not None and now() >= row.send_by:
            return CommitOutcome(
                applied=False, error="not sent: the attempt was held up past its time to send"
            )
        told = call_for(row, row.key, tool.limits.call, send_by=row.send_by)
        sent = untorn(started(tool.commit, load_object(row.request), told), within=tool.limits.call)
        try:
            return await _learned(sent)
        except StillGoing as going:
            call = going.task

            async def report(_: object) -> None:
                outcome = await _learned(call)
                if outcome.applied:
                    await self._recorded(row, outcome)

            self._stragglers.follow(
                call, keep_open=lambda until: self._store.keep_open(row.ref, until), report=report
            )
            return CommitOutcome(
                applied=None,
                error=f"no answer within {tool.limits.call}, and its call can't be stopped",
                going_on_until=now() + AHEAD,
            )


async def _learned(call: Awaitable[object]) -> CommitOutcome:
    """Return what a commit's end says of its effect.

    Raises:
        StillGoing: it hasn't ended.
    """
    try:
        done = await call
    except StillGoing:
        raise
    except NotApplied as error:
        return CommitOutcome(applied=False, error=said(error))
    except ToolOutcome as error:
        running = isinstance(error, StillRunning)
        spent = isinstance(error, OutcomeUnknown) and getattr(error, "final", False) is True
        return CommitOutcome(applied=None, error=said(error), running=running, spent=spent)
    except Exception as error:  # noqa: BLE001  # a tool's own code may raise anything
        # The text of a foreign error can hold headers and bodies; its type is enough for people.
        _log.warning("commit.no_answer", error_type=type(error).__name__)
        _log.debug("commit.no_answer.details", details=details(error))
        return CommitOutcome(applied=None, error=f"no answer that proves anything ({type(error).__name__})")
    if isinstance(done, Committed):
        return CommitOutcome(applied=True, receipt=done.receipt, result=done.result)
    # It returned, so it was applied, and what it returned can't be used: known, and hard to undo.
    _log.error("commit.returned_no_receipt", returned=type(done).__name__)
    return CommitOutcome(applied=True, receipt={"returned": type(done).__name__}, result=None)


async def _stale(tool: EffectTool[Any], row: EffectRow) -> str | None:
    """Return why a held effect must not be sent: what it was prepared on, or its tool, has moved since.

    The vendor's own check, where it has one, closes what is left between this look and the call.
    """
    if not Policy(CommitPolicy(row.policy), timedelta(milliseconds=row.delay_ms)).holds:
        return None
    try:
        values = parse_arguments(tool, row.arguments).model_dump(mode="json")
    except InvalidRequest as error:
        return f"stale: not sent, its tool takes other arguments now ({said(error)})"
    if digest(values) != row.arguments_digest:
        return "stale: not sent, its tool reads the arguments otherwise than when they were shown"
    if tool.current is None or row.read_version is None:
        return None
    try:
        version = await _prepared(
            started(tool.current, load_object(row.request), call_for(row, row.key, tool.limits.call)),
            within=tool.limits.call,
        )
    except (InvalidRequest, NotApplied, _Unprepared) as error:
        return f"not sent: what it was prepared on can't be read now ({said(error)})"
    if version_name(version) == row.read_version:
        return None
    return "stale: not sent, what it was prepared on has been changed since; read it again"


class _Unprepared(Exception):  # it says what isn't done
    """A tool's own code failed before there was an effect; the text names the error's type alone."""


def _guarded(work: Callable[[], T]) -> T:
    """Tell what a tool's own code raises apart from what the ledger raises."""
    try:
        return work()
    except (InvalidRequest, NotApplied):
        raise
    except Exception as error:
        raise _Unprepared(type(error).__name__) from error


async def _prepared(work: Awaitable[T], *, within: timedelta) -> T:
    try:
        return await bounded(work, within=within)
    except (InvalidRequest, NotApplied):
        raise
    except Exception as error:
        raise _Unprepared(type(error).__name__) from error


def _speak_of(claim: Claim) -> None:
    if claim.row is not None:
        speak_of(claim.row, claim.row.key)


def _row(claim: Claim) -> EffectRow:
    if claim.row is None:
        raise RuntimeError(f"the gate answered {claim.verdict!r} without a row")
    return claim.row
