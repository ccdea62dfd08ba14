"""``TurnSaga``: carries a turn through inside a workflow, to a completed or a settled end.

A turn goes forward in a task of its own, and the calls that it makes in tasks of theirs. What ends it
(an abort signal, a native cancel, a failure, the fence met in the ledger) only sets a flag; the calls in
flight are then waited for, never torn, and what follows is asked of the ledger, never of what this code
remembers. So a second abort, a replay, an eviction or a dead worker change nothing about the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from turnsaga import names
from turnsaga.errors import TURN_FAILED
from turnsaga.ledger import IN_DOUBT, OPEN_TURN, State, TurnState
from turnsaga.models import (
    AbortSignal,
    CallOutcome,
    CallPlan,
    CallRef,
    EffectBrief,
    FenceAnswer,
    FenceRequest,
    NextSteps,
    SettleRequest,
    StepPlan,
    StepRef,
    TurnResult,
    TurnStart,
)
from turnsaga.saga._calls import HEARTBEAT, Calls
from turnsaga.saga._ledger import book
from turnsaga.transcript import details_markdown, details_row

__all__ = ["SagaOptions", "TurnSaga"]

_TURN_STATUS: Final = SearchAttributeKey.for_keyword(names.TURN_STATUS)
_NEEDS_ATTENTION: Final = SearchAttributeKey.for_bool(names.NEEDS_ATTENTION)


@dataclass(frozen=True, kw_only=True)
class SagaOptions:
    """Bounds of a turn as a whole.

    ``model_timeout`` bounds one attempt of a model request, ``model_attempts`` how often it is asked.
    """

    model_timeout: timedelta = timedelta(minutes=10)
    model_attempts: int = 6


class _Stopped(Exception):  # not an error: it ends the way forward
    """The turn is being ended; no further call is prepared."""


class TurnSaga:
    """One turn inside its workflow: build it in ``@workflow.init``, then ``run`` the way forward.

    It takes the workflow's signal ``abort`` and its query ``ledger``.
    """

    def __init__(self, start: TurnStart, options: SagaOptions | None = None) -> None:
        self._start = start
        self._options = options or SagaOptions()
        self._stop: FenceRequest | None = None
        self._briefs: dict[str, EffectBrief] = {}
        self._rows: dict[str, str] = {}
        self._calls = Calls(start, self._note)
        self._inflight: set[asyncio.Task[None]] = set()
        self._step = 0
        self._status = TurnState.RUNNING
        self._attention = False
        workflow.set_signal_handler(names.ABORT, self._on_abort)
        workflow.set_query_handler(names.LEDGER, self._on_ledger)

    @classmethod
    def recovering(cls, start: TurnStart) -> "TurnSaga":
        """Return a saga for a turn whose own run is gone, or that was settled and has moved since."""
        saga = cls(start)
        saga._end("abort", "recovery", "the run of this turn ended without settling it")
        return saga

    async def recover(self) -> TurnResult:
        """Settle the turn; what was handed over in doubt is asked about once more first.

        A completed turn stays completed: only what became of its effects in doubt is found out.
        """
        state, _ = await self._outlast(self._settle(ask_again=True))
        return TurnResult(turn=self._start.turn, state=state)

    async def run(self, forward: Callable[["TurnSaga"], Awaitable[None]]) -> TurnResult:
        """Go forward, then complete or settle. Returns once the turn has ended in the ledger.

        A native cancel ends the turn like an abort, and the workflow as cancelled once it is settled.

        Raises:
            ApplicationError: of type ``TurnFailed``: the turn failed, and is settled.
        """
        state, cancelled = await self._outlast(self._live(forward))
        if state is TurnState.FAILED:
            reason = (self._stop.reason if self._stop else None) or "the turn failed"
            raise ApplicationError(reason, type=TURN_FAILED, non_retryable=True)
        if cancelled and state is TurnState.ABORTED:
            raise asyncio.CancelledError
        return TurnResult(turn=self._start.turn, state=state)

    async def _outlast(self, life: Coroutine[Any, Any, TurnState]) -> tuple[TurnState, bool]:
        """Live to the end whatever cancels this run; tell whether something did."""
        task = asyncio.create_task(life)
        cancelled = False
        while not task.done():
            try:
                await workflow.wait_condition(task.done)
            except asyncio.CancelledError:
                reason = workflow.cancellation_reason()
                if reason is None or task.cancelled():
                    raise  # the run is evicted from this worker's cache, nobody asked for a cancel
                cancelled = True
                self._end("abort", "cancel", reason or "cancelled in Temporal")
        return task.result(), cancelled

    # What the way forward is made of

    async def step(self, activity: str = names.MODEL_REQUEST) -> StepPlan:
        """Ask the model once. ``activity`` streams the reply into the ledger and returns its calls."""
        if self._stop is not None:
            raise _Stopped
        self._step += 1
        plan: StepPlan = await workflow.execute_activity(
            activity,
            StepRef(tenant=self._start.tenant, turn=self._start.turn, step=self._step),
            result_type=StepPlan,
            start_to_close_timeout=self._options.model_timeout,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=250),
                maximum_interval=timedelta(seconds=10),
                maximum_attempts=self._options.model_attempts,
            ),
            summary=f"model request {self._step}",
        )
        if plan.fenced:
            self._meet_fence()
        return plan

    async def perform(self, plan: StepPlan) -> None:
        """Run the calls of a reply side by side, and return when each has its result in the ledger."""
        if self._stop is not None:
            raise _Stopped
        tasks = [asyncio.create_task(self._call(plan.step, call)) for call in plan.calls]
        self._inflight.update(tasks)
        await workflow.wait_condition(lambda: all(task.done() for task in tasks))
        self._inflight.difference_update(tasks)
        for task in tasks:
            task.result()
        if self._stop is not None:
            raise _Stopped

    # Ways to end it

    def fail(self, reason: str) -> None:
        """End the turn as failed; what it did is settled as after an abort."""
        self._end("failure", "engine", reason)

    def _on_abort(self, payload: Any = None) -> None:  # noqa: ANN401  # any client's JSON: an abort must not be lost over its form
        try:
            signal = AbortSignal.model_validate(payload if isinstance(payload, dict) else {})
        except ValueError:
            signal = AbortSignal()
        self._end("abort", "signal", signal.reason, by=signal.by, seen=signal.seen)

    def _end(
        self, cause: str, via: str, reason: str | None, *, by: str | None = None, seen: int | None = None
    ) -> None:
        if self._stop is None:
            self._stop = FenceRequest.model_validate(
                {
                    "tenant": self._start.tenant,
                    "turn": self._start.turn,
                    "cause": cause,
                    "via": via,
                    "reason": reason,
                    "by": by,
                    "seen": seen,
                }
            )

    def _meet_fence(self) -> None:
        # The ledger is fenced, so who asked for it and why is recorded there: this only says "settle".
        self._end("abort", "engine", "the turn was stopped")
        raise _Stopped

    # The life of a turn

    async def _live(self, forward: Callable[["TurnSaga"], Awaitable[None]]) -> TurnState:
        if self._stop is None:
            await self._go_forward(forward)
            if await self._complete():
                return TurnState.COMPLETED
        return await self._settle()

    async def _go_forward(self, forward: Callable[["TurnSaga"], Awaitable[None]]) -> None:
        async def way() -> None:
            await forward(self)

        task = asyncio.create_task(way())
        limit = self._start.deadline_ms
        try:
            await workflow.wait_condition(
                lambda: task.done() or self._stop is not None,
                timeout=None if limit is None else timedelta(milliseconds=limit),
                timeout_summary="the turn's deadline",
            )
        except TimeoutError:
            self.fail(f"the turn took longer than its deadline of {limit} ms")
        if not task.done():
            # Only the way forward and its model request are cancelled; calls run in tasks of their own.
            task.cancel()
            return
        error = task.exception()
        if isinstance(error, FailureError):
            self.fail(_why(error))
        elif error is not None and not isinstance(error, _Stopped):
            raise error  # a bug: the workflow task fails, and goes on once the code is mended

    async def _complete(self) -> bool:
        while self._stop is None:
            answer = await book(names.COMPLETE, self._start.ref, NextSteps)
            self._remember(answer.briefs, answer.state)
            if answer.settled:
                return True
            if answer.state is not TurnState.RUNNING:
                return False
            await self._calls.carry_out(answer.steps, given_up=set())
        return False

    async def _settle(self, *, ask_again: bool = False) -> TurnState:
        request = self._stop or FenceRequest(
            tenant=self._start.tenant, turn=self._start.turn, cause="abort", via="engine"
        )
        if ask_again or not all(task.done() for task in self._inflight):
            self._show("stopping: calls in flight are waited for")
            fenced = await book(names.FENCE, request, FenceAnswer)
            self._remember((), fenced.state)
            # Worth an event only where it lasts: mostly the turn is settled in a blink.
            self._index(fenced.state)
            # A call that passed its gate is on its way; what it did is known when it ends, not before.
            await workflow.wait_condition(lambda: all(task.done() for task in self._inflight))
        if ask_again:
            # After the fence, so that what is found is undone by this very run.
            owned = await book(names.OWNED, self._start.ref, NextSteps)
            await self._calls.carry_out(owned.steps, given_up=set())
        given_up: set[str] = set()
        answer = await self._next(given_up, fence=request)
        while not answer.settled:
            then = await self._calls.carry_out(answer.steps, given_up=given_up)
            if then is None:
                answer = await self._next(given_up)
            else:
                answer = then
                self._remember(answer.briefs, answer.state)
        return answer.state

    async def _next(self, given_up: set[str], *, fence: FenceRequest | None = None) -> NextSteps:
        request = SettleRequest(
            tenant=self._start.tenant,
            turn=self._start.turn,
            given_up=tuple(sorted(given_up)),
            fence=fence,
        )
        answer = await book(names.SETTLE, request, NextSteps)
        self._remember(answer.briefs, answer.state)
        return answer

    async def _call(self, step: int, plan: CallPlan) -> None:
        ref = CallRef(tenant=self._start.tenant, turn=self._start.turn, step=step, index=plan.index)
        if plan.kind == "read":
            await self._calls.read(ref, plan)
            return
        try:
            outcome = await self._calls.commit(ref, plan)
        except ActivityError:
            outcome = CallOutcome()
        if outcome.effect is not None:
            self._note(outcome.effect)
        if outcome.fenced:
            self._end("abort", "engine", "the turn was stopped")
        lost = (
            outcome.effect is None
            or outcome.effect.state in IN_DOUBT
            or outcome.effect.state is State.PREPARED
        )
        if lost and self._stop is None:
            answer = await book(names.UNDECIDED, self._start.ref, NextSteps)
            mine = [
                step
                for step in answer.steps
                if outcome.effect is None or step.effect == outcome.effect.effect
            ]
            await self._calls.carry_out(mine, given_up=set())

    # What is seen from outside

    def _remember(self, briefs: Sequence[EffectBrief], state: TurnState) -> None:
        self._briefs.update({brief.effect: brief for brief in briefs})
        # Kept as they are written: a turn of a thousand effects would write them all a thousand times.
        self._rows.update({brief.effect: details_row(brief) for brief in briefs})
        if state is not self._status:
            self._status = state
            if state not in OPEN_TURN:
                self._index(state)
        self._show(f"turn {self._status}")

    def _index(self, state: TurnState) -> None:
        """Change what the turn is found by; one command, since each is an event and a write to the index."""
        attention = any(
            brief.state in IN_DOUBT or brief.state is State.COMPENSATION_FAILED
            for brief in self._briefs.values()
        )
        changes: list[SearchAttributeUpdate[Any]] = [_TURN_STATUS.value_set(state.value)]
        if attention is not self._attention:
            self._attention = attention
            changes.append(_NEEDS_ATTENTION.value_set(attention))
        workflow.upsert_search_attributes(changes)

    def _note(self, brief: EffectBrief) -> None:
        self._remember((brief,), self._status)

    def _show(self, headline: str) -> None:
        workflow.set_current_details(details_markdown(headline, self._rows.values()))

    def _on_ledger(self) -> dict[str, Any]:
        return {
            "turn": self._start.turn,
            "state": self._status.value,
            "effects": [brief.model_dump(mode="json") for brief in self._briefs.values()],
        }


def _why(error: FailureError) -> str:
    cause = error.cause or error
    return str(getattr(cause, "message", None) or cause)[:500]
