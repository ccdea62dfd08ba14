"""``<tool>.commit``: one attempt to prepare and commit a call."""

import asyncio
from typing import Any, Final, assert_never

import structlog
from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnsaga import settle
from turnsaga.attempts import untorn
from turnsaga.errors import OUTCOME_UNKNOWN, InvalidRequest, NotApplied, StoreUnavailable, ToolOutcome
from turnsaga.keys import canonical_json, digest, effect_key
from turnsaga.ledger import State
from turnsaga.models import CallOutcome, CallRef
from turnsaga.store import (
    CallContext,
    Claim,
    CommitOutcome,
    EffectRow,
    NewEffect,
    SqlStore,
    Verdict,
    brief,
    load_object,
    plan_row,
)
from turnsaga.tool_activities._common import EXPECTED, INSIST, call_before, call_for, ms, now
from turnsaga.tool_activities._plans import call_plan
from turnsaga.tools import Call, Committed, EffectTool, Keyed, Prepared, parse_arguments, sentence

__all__ = ["CommitAttempts"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_POLL_S: Final = 0.1


class CommitAttempts:
    """Attempts to commit."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def run(self, tool: EffectTool[Any], ref: CallRef) -> CallOutcome:
        """Prepare the call if it isn't, pass the gate, call, and write what came of it."""
        context = await self._store.call_context(ref)
        new: NewEffect | None = None
        if context.effect is None and not context.fenced:
            if context.result is not None:
                return CallOutcome()
            new = await self._prepare(tool, ref, context)
            if new is None:
                return CallOutcome()
        waited_until = now() + tool.limits.wait
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
                    if row.state not in {State.PREPARED, State.COMMITTING} or now() >= waited_until:
                        return CallOutcome(effect=brief(row))
                case Verdict.BUSY:
                    if now() >= waited_until:
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
                tool, arguments, call_before(ref, context.user, key, tool.limits.call)
            )
            canonical_json(prepared.request)
            resources = tuple(tool.resources(arguments)) if tool.resources is not None else ()
        except (InvalidRequest, NotApplied) as error:
            await self._store.record_result(ref, f"not run: {error}", is_error=True)
            return None
        except Exception as error:  # noqa: BLE001  # a tool's own code may raise anything
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
            key_life_ms=ms(repeat.lifetime) if isinstance(repeat, Keyed) else None,
            send_by_ms=ms(limits.send_by),
            landing_ms=ms(limits.landing_window),
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
        action = settle.resolution(plan_row(stored, undo_given_up=False), fenced=False, now=now())
        if undecided and action is settle.Action.SEND_AGAIN:
            raise ApplicationError(
                f"{row.summary}: no answer that proves anything; it is sent again under its key",
                type=OUTCOME_UNKNOWN,
                category=EXPECTED,
            )
        return CallOutcome(effect=brief(stored))

    async def _recorded(self, row: EffectRow, outcome: CommitOutcome) -> EffectRow:
        """Write an outcome, insisting while the ledger is away: it is known nowhere else."""
        give_up = now() + INSIST
        while True:
            try:
                return await self._store.record_commit(row.ref, row.token, outcome)
            except StoreUnavailable:
                if now() >= give_up:
                    raise

    async def _sent(
        self, tool: EffectTool[Any], row: EffectRow, log: structlog.stdlib.BoundLogger
    ) -> CommitOutcome:
        # An attempt that was paused past its moment must not send: whether its request can still land
        # is judged by others from this instant on.
        if row.send_by is not None and now() >= row.send_by:
            return CommitOutcome(
                applied=False, error="not sent: the attempt was held up past its time to send"
            )
        try:
            done = await untorn(
                tool.commit(load_object(row.request), call_for(row, row.key, tool.limits.call)),
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
        if isinstance(done, Committed):  # pyright: ignore[reportUnnecessaryIsInstance]  # a tool's own code may break its types
            return CommitOutcome(applied=True, receipt=done.receipt, result=done.result)
        # It returned, so it was applied, and what it returned can't be used: known, and hard to undo.
        log.error("commit.returned_no_receipt", returned=type(done).__name__)
        return CommitOutcome(applied=True, receipt={"returned": type(done).__name__}, result=None)


def _row(claim: Claim) -> EffectRow:
    if claim.row is None:
        raise RuntimeError(f"the gate answered {claim.verdict!r} without a row")
    return claim.row
