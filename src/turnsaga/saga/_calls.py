"""The calls of a turn as activities: commit, read, look up, undo."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

from turnsaga import names
from turnsaga.models import (
    CallOutcome,
    CallPlan,
    CallRef,
    EffectBrief,
    EffectRef,
    HandOver,
    NextSteps,
    PlannedStep,
    Resolution,
    TurnStart,
)
from turnsaga.saga._ledger import book, patient

__all__ = ["HEARTBEAT", "Calls"]

HEARTBEAT: Final = timedelta(seconds=5)
"""After this long without a heartbeat an attempt's worker counts as dead."""


class Calls:
    """Runs calls, and tells ``remember`` what became of each effect."""

    def __init__(self, start: TurnStart, remember: Callable[[EffectBrief], None]) -> None:
        self._start = start
        self._remember = remember

    async def prepare(self, ref: CallRef, plan: CallPlan) -> CallOutcome:
        """Prepare a call whose effect is held.

        Raises:
            ActivityError: its bound is over; whether it is prepared is for the ledger to say.
        """
        return await self._attempt(
            names.prepare_activity(plan.tool), ref, plan, summary=f"prepare: {plan.summary}"
        )

    async def commit(self, ref: CallRef, plan: CallPlan) -> CallOutcome:
        """Run the call's commit to its own end.

        Raises:
            ActivityError: its bound is over; what it did is for the ledger to say.
        """
        return await self._attempt(names.commit_activity(plan.tool), ref, plan, summary=plan.summary)

    async def _attempt(self, activity: str, ref: CallRef, plan: CallPlan, *, summary: str) -> CallOutcome:
        outcome: CallOutcome = await workflow.execute_activity(
            activity,
            ref,
            result_type=CallOutcome,
            start_to_close_timeout=timedelta(milliseconds=plan.attempt_ms),
            schedule_to_close_timeout=timedelta(milliseconds=plan.total_ms),
            heartbeat_timeout=HEARTBEAT,
            # How often a request is sent is counted in the ledger, where a dead worker's attempts count too.
            retry_policy=patient(timedelta(milliseconds=200)),
            # Nothing cancels a commit, and if something did it must not end before its call has.
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        )
        return outcome

    async def read(self, ref: CallRef, plan: CallPlan) -> None:
        """Run a read-only call; if it fails for good, its result says so."""
        try:
            await workflow.execute_activity(
                names.read_activity(plan.tool),
                ref,
                start_to_close_timeout=timedelta(milliseconds=plan.attempt_ms),
                schedule_to_close_timeout=timedelta(milliseconds=plan.total_ms),
                heartbeat_timeout=HEARTBEAT,
                retry_policy=RetryPolicy(maximum_attempts=4, initial_interval=timedelta(milliseconds=200)),
                summary=plan.summary,
            )
        except ActivityError:
            workflow.logger.warning("read.failed", extra={"tool": plan.tool})

    async def carry_out(self, steps: Sequence[PlannedStep], *, given_up: set[str]) -> NextSteps | None:
        """Do what a plan asks for: look-ups and repeats side by side, an undo alone.

        Returns what the ledger says to do then, if it was asked with the last outcome.
        """
        if len(steps) == 1 and steps[0].action == "undo":
            return await self._undo(steps[0], given_up)
        await asyncio.gather(*(self._one(step) for step in steps))
        return None

    async def _one(self, step: PlannedStep) -> None:
        if step.action == "wait":
            await workflow.sleep(
                timedelta(milliseconds=step.wait_ms), summary="a request may still be under way"
            )
        elif step.action == "look_up":
            await self._look_up(step)
        elif step.action == "send_again":
            await self._send_again(step)
        elif step.action == "undo":
            # Of a turn that runs: what nobody asks about. If it isn't done with, it is met again at the end.
            await self._undo(step, set())
        else:
            await self._hand_over(step.effect, "it runs as a job of the system and isn't followed yet")

    async def _undo(self, step: PlannedStep, given_up: set[str]) -> NextSteps | None:
        plan = step.call
        try:
            done: CallOutcome = await workflow.execute_activity(
                names.compensate_activity(plan.tool),
                self._effect(step.effect),
                result_type=CallOutcome,
                start_to_close_timeout=timedelta(milliseconds=plan.undo_attempt_ms),
                schedule_to_close_timeout=timedelta(milliseconds=plan.undo_total_ms),
                heartbeat_timeout=HEARTBEAT,
                retry_policy=patient(timedelta(milliseconds=200)),
                cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=plan.undo_summary,
            )
        except ActivityError:
            given_up.add(step.effect)
            return None
        if done.effect is not None:
            self._remember(done.effect)
        return done.next

    async def _look_up(self, step: PlannedStep) -> None:
        plan = step.call
        try:
            found = await workflow.execute_activity(
                names.lookup_activity(plan.tool),
                self._effect(step.effect),
                result_type=Resolution,
                start_to_close_timeout=timedelta(milliseconds=plan.attempt_ms),
                schedule_to_close_timeout=timedelta(milliseconds=plan.resolve_ms),
                heartbeat_timeout=HEARTBEAT,
                retry_policy=patient(timedelta(milliseconds=200)),
                summary=f"what became of: {plan.summary}",
            )
        except ActivityError:
            await self._hand_over(step.effect, "its outcome could not be found out in time")
        else:
            self._remember(found.effect)

    async def _send_again(self, step: PlannedStep) -> None:
        ref = CallRef(tenant=self._start.tenant, turn=self._start.turn, step=step.step, index=step.call.index)
        try:
            outcome = await self.commit(ref, step.call)
        except ActivityError:
            await self._hand_over(step.effect, "it was sent again, and no answer came in time")
        else:
            if outcome.effect is not None:
                self._remember(outcome.effect)

    async def _hand_over(self, effect: str, reason: str) -> None:
        request = HandOver(tenant=self._start.tenant, turn=self._start.turn, effect=effect, reason=reason)
        answer = await book(names.HAND_OVER, request, CallOutcome)
        if answer.effect is not None:
            self._remember(answer.effect)

    def _effect(self, effect: str) -> EffectRef:
        return EffectRef(tenant=self._start.tenant, turn=self._start.turn, effect=effect)
