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
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from turnsaga import names
from turnsaga.errors import TURN_FAILED
from turnsaga.ledger import IN_DOUBT, State, TurnState
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
from turnsaga.saga._held import Held
from turnsaga.saga._ledger import book
from turnsaga.saga._place import Place
from turnsaga.saga._seen import Seen

__all__ = ["SagaOptions", "TurnSaga"]


@dataclass(frozen=True, kw_only=True)
class SagaOptions:
    """Bounds of a turn as a whole.

    ``model_timeout`` bounds one attempt of a model request, ``model_attempts`` how often it is asked,
    ``queue_wait`` how long a turn waits for the conversation's earlier ones.
    """

    model_timeout: timedelta = timedelta(minutes=10)
    model_attempts: int = 6
    queue_wait: timedelta = timedelta(hours=1)


class _Stopped(Exception):  # not an error: it ends the way forward
    """The turn is being ended; no further call is prepared."""


class TurnSaga:
    """One turn inside its workflow: build it in ``@workflow.init``, then ``run`` the way forward.

    It takes the workflow's signals ``abort``, ``decided`` and ``proceed``, its updates ``confirm`` and
    ``reject``, and its query ``ledger``.
    """

    def __init__(self, start: TurnStart, options: SagaOptions | None = None) -> None:
        self._start = start
        self._options = options or SagaOptions()
        self._stop: FenceRequest | None = None
        # What the ledger said to do when it was fenced, if that came with the abort.
        self._told: NextSteps | None = None
        self._seen = Seen(start)
        self._calls = Calls(start, self._seen.note)
        self._place = Place(start, stopped=lambda: self._stop is not None)
        self._held = Held(
            start,
            remember=self._seen.note,
            stopped=lambda: self._stop is not None,
            fenced=lambda: self._end("abort", "engine", "the turn was stopped"),
        )
        # What the end of the stream commits, by its place among the turn's calls.
        self._at_end: dict[tuple[int, int], tuple[CallRef, CallPlan, EffectBrief]] = {}
        self._inflight: set[asyncio.Task[None]] = set()
        self._step = 0
        workflow.set_signal_handler(names.ABORT, self._on_abort)

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

        async def whole() -> TurnState:
            state = await life
            # An answer that came in the last moment gets the ledger's word, and not an error.
            await workflow.wait_condition(workflow.all_handlers_finished)
            return state

        task = asyncio.create_task(whole())
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
        begun: dict[int, asyncio.Task[None]] = {}
        for call in plan.calls:
            earlier = [begun[index] for index in call.after if index in begun]
            begun[call.index] = asyncio.create_task(self._call(plan.step, call, earlier))
        await self._ended(list(begun.values()))

    async def _ended(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait for calls to end; they are in tasks of their own, which nothing that ends the turn tears."""
        self._inflight.update(tasks)
        await workflow.wait_condition(lambda: all(task.done() for task in tasks))
        self._inflight.difference_update(tasks)
        for task in tasks:
            task.result()
        if self._stop is not None:
            raise _Stopped

    async def _commit_held(self) -> None:
        """Commit what was held for the end of the stream: in call order, one at a time."""
        for place in sorted(self._at_end):
            if self._stop is not None:
                raise _Stopped
            ref, plan, brief = self._at_end[place]
            outcome = CallOutcome(effect=brief)
            await self._ended([asyncio.create_task(self._see_through(ref, plan, outcome, turn_ended=True))])

    # Ways to end it

    def fail(self, reason: str) -> None:
        """End the turn as failed; what it did is settled as after an abort."""
        self._end("failure", "engine", reason)

    def _on_abort(self, payload: Any = None) -> None:  # noqa: ANN401  # any client's JSON: an abort must not be lost over its form
        try:
            signal = AbortSignal.model_validate(payload if isinstance(payload, dict) else {})
        except ValueError:
            signal = AbortSignal()
        if self._stop is None:
            self._told = self._seen.first_undo(signal.next)
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
        if self._start.queued and self._stop is None:
            await self._wait_for_place()
        if self._stop is None:
            await self._go_forward(forward)
            if await self._complete():
                return TurnState.COMPLETED
        return await self._settle()

    async def _wait_for_place(self) -> None:
        within = self._options.queue_wait
        state = await self._place.taken(within=within)
        self._seen.remember((), state)
        if state is TurnState.RUNNING:
            self._seen.index(state)
        elif state is TurnState.QUEUED:
            self.fail(f"waited {within} for the conversation's earlier turn")
        else:
            self._end("abort", "engine", "the turn was stopped")

    async def _go_forward(self, forward: Callable[["TurnSaga"], Awaitable[None]]) -> None:
        async def way() -> None:
            await forward(self)
            await self._commit_held()

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
            task.add_done_callback(_retrieved)
            return
        error = task.exception()
        if isinstance(error, FailureError):
            self.fail(_why(error))
        elif error is not None and not isinstance(error, _Stopped):
            raise error  # a bug: the workflow task fails, and goes on once the code is mended

    async def _complete(self) -> bool:
        while self._stop is None:
            answer = await book(names.COMPLETE, self._start.ref, NextSteps)
            self._seen.remember(answer.briefs, answer.state)
            if answer.settled:
                await self._place.tell_next(answer.next_turn)
                return True
            if answer.state is not TurnState.RUNNING:
                return False
            await self._calls.carry_out(answer.steps, given_up=set())
        return False

    async def _settle(self, *, ask_again: bool = False) -> TurnState:
        request = self._stop or FenceRequest(
            tenant=self._start.tenant, turn=self._start.turn, cause="abort", via="engine"
        )
        told = self._told
        if ask_again or not all(task.done() for task in self._inflight):
            told = None
            self._seen.show("stopping: calls in flight are waited for")
            fenced = await book(names.FENCE, request, FenceAnswer)
            self._seen.remember(fenced.briefs, fenced.state)
            # Worth an event only where it lasts: mostly the turn is settled in a blink.
            self._seen.index(fenced.state)
            # A call that passed its gate is on its way; what it did is known when it ends, not before.
            await workflow.wait_condition(lambda: all(task.done() for task in self._inflight))
        if ask_again:
            # After the fence, so that what is found is undone by this very run.
            owned = await book(names.OWNED, self._start.ref, NextSteps)
            await self._calls.carry_out(owned.steps, given_up=set())
        given_up: set[str] = set()
        while True:
            answer = told or await self._next(given_up, fence=request)
            self._seen.remember(answer.briefs, answer.state)
            if answer.settled:
                break
            told = await self._calls.carry_out(answer.steps, given_up=given_up)
        await self._place.tell_next(answer.next_turn)
        return answer.state

    async def _next(self, given_up: set[str], *, fence: FenceRequest) -> NextSteps:
        request = SettleRequest(
            tenant=self._start.tenant,
            turn=self._start.turn,
            given_up=tuple(sorted(given_up)),
            fence=fence,
        )
        return await book(names.SETTLE, request, NextSteps)

    async def _call(self, step: int, plan: CallPlan, earlier: Sequence[asyncio.Task[None]]) -> None:
        await workflow.wait_condition(lambda: all(task.done() for task in earlier))
        if self._stop is not None:
            return
        ref = CallRef(tenant=self._start.tenant, turn=self._start.turn, step=step, index=plan.index)
        if plan.kind == "read":
            await self._calls.read(ref, plan)
            return
        first = self._calls.prepare if plan.held else self._calls.commit
        await self._see_through(ref, plan, await self._attempt(first, ref, plan), turn_ended=False)

    async def _attempt(
        self, phase: Callable[[CallRef, CallPlan], Awaitable[CallOutcome]], ref: CallRef, plan: CallPlan
    ) -> CallOutcome:
        try:
            outcome = await phase(ref, plan)
        except ActivityError:
            outcome = CallOutcome()
        if outcome.effect is not None:
            self._seen.note(outcome.effect)
        if outcome.fenced:
            self._end("abort", "engine", "the turn was stopped")
        return outcome

    async def _see_through(
        self, ref: CallRef, plan: CallPlan, outcome: CallOutcome, *, turn_ended: bool
    ) -> None:
        """Wait out what holds a call's effect, commit it, and find out what became of it."""
        if outcome.repeated:
            return
        brief = outcome.effect
        if brief is not None and brief.state is State.PREPARED and self._stop is None:
            brief = await self._held.until_due(brief, turn_ended=turn_ended)
            if self._stop is not None:
                return
            if brief.held_for == "turn_end":
                self._at_end[ref.step, ref.index] = (ref, plan, brief)
                return
            if brief.state is State.PREPARED:
                outcome = await self._attempt(self._calls.commit, ref, plan)
                brief = outcome.effect
            if brief is not None and brief.held_for == "turn_end" and not turn_ended:
                self._at_end[ref.step, ref.index] = (ref, plan, brief)
                return
        lost = brief is None or brief.state in IN_DOUBT or brief.state is State.PREPARED
        if lost and self._stop is None:
            answer = await book(names.UNDECIDED, ref, NextSteps)
            self._seen.remember(answer.briefs, self._seen.status)
            await self._calls.carry_out(answer.steps, given_up=set())
            brief = self._seen.brief(brief.effect) if brief is not None else None
        undone = brief is not None and brief.state is State.COMPENSATED
        if plan.ends_turn and brief is not None and (undone or brief.state is State.FAILED):
            self._end("abort", "engine", f"{plan.summary}: it failed, and its tool stops the turn then")


def _retrieved(task: asyncio.Task[None]) -> None:
    """Take note of how a way forward ended that nobody waits for any more: it was stopped, however."""
    if not task.cancelled():
        task.exception()


def _why(error: FailureError) -> str:
    cause = error.cause or error
    return str(getattr(cause, "message", None) or cause)[:500]
