"""``<tool>.compensate``: one attempt to undo an effect."""

import asyncio
from datetime import timedelta
from typing import Any, Final

import structlog
from temporalio.exceptions import ApplicationError

from turnsaga.attempts import StillGoing, started, untorn
from turnsaga.errors import (
    OUTCOME_UNKNOWN,
    ChangedSince,
    NotApplied,
    StillRunning,
    StoreUnavailable,
    ToolOutcome,
    UndoRefused,
)
from turnsaga.models import CallOutcome, EffectRef
from turnsaga.store import (
    EffectRow,
    SqlStore,
    UndoOutcome,
    UndoRecorded,
    UndoVerdict,
    brief,
    load_object,
)
from turnsaga.tool_activities._common import (
    EXPECTED,
    INSIST,
    STILL_RUNNING,
    call_for,
    now,
    said,
    speak_of,
    until,
)
from turnsaga.tool_activities._stragglers import Stragglers
from turnsaga.tools import Call, EffectTool, JsonObject, Undone

__all__ = ["UndoAttempts"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


# A system's reads may lag behind its writes; one that denies an undo for longer is believed.
_READ_BACK: Final = timedelta(seconds=5)


class UndoAttempts:
    """Attempts to undo."""

    def __init__(self, store: SqlStore, stragglers: Stragglers) -> None:
        self._store = store
        self._stragglers = stragglers

    async def run(self, tool: EffectTool[Any], ref: EffectRef) -> CallOutcome:
        """Claim the row, undo, and write what came of it.

        Raises:
            ApplicationError: not undone yet; it is tried again within the undo's own budget.
        """
        claim = await self._store.claim_undo(ref)
        speak_of(claim.row, claim.row.undo_key)
        if claim.verdict is UndoVerdict.ASK:
            outcome = await self._asked(tool, claim.row)
            if outcome is not None:
                return await self._written(claim.row, outcome)
            claim = await self._store.claim_undo(ref)
        if not claim.sends:
            return CallOutcome(effect=brief(claim.row))
        row = claim.row
        outcome = await self._undone(tool, row)
        if outcome is None:
            raise ApplicationError(
                f"{row.summary}: its undo gave no answer that proves anything",
                type=OUTCOME_UNKNOWN,
                category=EXPECTED,
            )
        return await self._written(row, outcome)

    async def _written(self, row: EffectRow, outcome: UndoOutcome) -> CallOutcome:
        stored = await self._recorded(row, outcome)
        _log.info("undo.recorded", state=stored.row.state.value)
        if outcome.running:
            raise ApplicationError(
                f"{row.summary}: its undo is still under way; it is asked again",
                type=OUTCOME_UNKNOWN,
                category=EXPECTED,
                next_retry_delay=STILL_RUNNING,
            )
        if outcome.again:
            raise ApplicationError(
                f"{row.summary}: not undone yet ({outcome.error})", type="UndoNotApplied", category=EXPECTED
            )
        return CallOutcome(effect=brief(stored.row), next=stored.next)

    async def _recorded(self, row: EffectRow, outcome: UndoOutcome) -> UndoRecorded:
        give_up = now() + INSIST
        while True:
            try:
                return await self._store.record_undo(row.ref, row.token, outcome, claimed=row)
            except StoreUnavailable:
                if now() >= give_up:
                    raise

    async def _asked(self, tool: EffectTool[Any], row: EffectRow) -> UndoOutcome | None:
        """Read back what an undo without an answer did; None is proof that it did nothing.

        Raises:
            ApplicationError: that can't be told yet; it is asked again.
        """
        request, receipt = load_object(row.request), load_object(row.receipt)
        call = call_for(row, row.undo_key, tool.limits.undo_call)
        asked_at = now()
        if tool.check_undone is None:
            return UndoOutcome(error="its undo may have been done, and this version of its tool can't look")
        try:
            gone = await untorn(
                started(tool.check_undone, request, receipt, call), within=tool.limits.undo_call
            )
        except Exception as error:  # noqa: BLE001  # a tool's own code may raise anything
            _log.warning("undo.not_read_back", error_type=type(error).__name__)
            gone = None
        if gone:
            return UndoOutcome(undone=True, evidence={"read_back": True})
        if gone is False:
            denied = await self._store.deny_undo(row.ref, row.token, asked_at=asked_at)
            if denied.undo_sends == denied.undo_refusals:
                return None
        raise ApplicationError(
            f"{row.summary}: its undo gave no answer, and may still be done; it is read back again",
            type=OUTCOME_UNKNOWN,
            category=EXPECTED,
            next_retry_delay=until(row.undo_wire_until),
        )

    async def _undone(self, tool: EffectTool[Any], row: EffectRow) -> UndoOutcome | None:
        """Return what the undo learned, or None if nothing is known."""
        if tool.compensate is None:
            return UndoOutcome(error="this version of its tool has no undo any more")
        if row.undo_send_by is not None and now() >= row.undo_send_by:
            return UndoOutcome(again=True, error="the attempt was held up past its time to send")
        request, receipt = load_object(row.request), load_object(row.receipt)
        call = call_for(row, row.undo_key, tool.limits.undo_call, send_by=row.undo_send_by)
        try:
            done = await untorn(
                started(tool.compensate, request, receipt, call), within=tool.limits.undo_call
            )
            if not isinstance(done, Undone) or not done.evidence:
                # It returned and shows nothing for it: an undo that does nothing looks just like this.
                return UndoOutcome(error="its undo returned no evidence that it was undone")
            if not await _reads_back(tool, request, receipt, call):
                return UndoOutcome(error="its undo was answered, and reading back shows it still there")
        except StillGoing as going:

            async def report(ended: "asyncio.Task[Any]") -> None:
                late: object = None if ended.exception() else ended.result()
                if isinstance(late, Undone) and late.evidence:
                    # Whoever sent it: what was undone is gone.
                    await self._recorded(row, UndoOutcome(undone=True, evidence=late.evidence))

            self._stragglers.follow(
                going.task,
                keep_open=lambda ahead: self._store.keep_undo_open(row.ref, ahead),
                report=report,
            )
            return None
        except ToolOutcome as error:
            return _said(error)
        except Exception as error:  # noqa: BLE001  # a tool's own code may raise anything
            _log.warning("undo.no_answer", error_type=type(error).__name__)
            return None
        return UndoOutcome(undone=True, evidence=done.evidence)


def _said(error: ToolOutcome) -> UndoOutcome | None:
    """Return what a tool's undo said by raising; None if that proves nothing."""
    match error:
        case UndoRefused():
            return UndoOutcome(error=said(error))
        case ChangedSince():
            return UndoOutcome(overtaken=True, error=said(error))
        case NotApplied():
            return UndoOutcome(again=True, error=said(error))
        case StillRunning():
            return UndoOutcome(running=True)
        case _:
            _log.warning("undo.no_answer", error_type=type(error).__name__)
            return None


async def _reads_back(tool: EffectTool[Any], request: JsonObject, receipt: JsonObject, call: Call) -> bool:
    """Tell whether the system shows the effect undone, or tool and system have no way to say."""
    if tool.check_undone is None:
        return True
    give_up, pause = now() + _READ_BACK, 0.1
    while not await untorn(started(tool.check_undone, request, receipt, call), within=tool.limits.undo_call):
        if now() >= give_up:
            return False
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1.0)
    return True
