"""A saga on Temporal as its tutorial writes it, with every default of the SDK.

Compensations are noted, and run in reverse order when the run fails or is cancelled
(https://github.com/temporalio/temporal-learning/tree/main/docs/tutorials/python/sagas). There, each is noted
before its step; a refund needs the charge's id, which its answer brings, and so is noted after it. The time
limit is the tutorial's.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from benchmarks.crashes import shop
    from benchmarks.crashes.cells import Order
    from benchmarks.crashes.shop import Call

__all__ = ["NAIVE_ACTIVITIES", "NaiveOrder", "NaiveSaga"]

_SOON: Final = timedelta(seconds=10)


@dataclass
class NaiveOrder:
    """An order; ``keyed``: each call has the workflow's id and its step's number as its key."""

    order: Order
    keyed: bool = False


@activity.defn(name="crashes.create_record")
async def create_record(call: Call) -> None:
    """Make the record."""
    await shop.create_record(call)


@activity.defn(name="crashes.delete_record")
async def delete_record(call: Call) -> None:
    """Take the record back."""
    await shop.delete_record(call)


@activity.defn(name="crashes.charge")
async def charge(call: Call) -> str:
    """Charge for the invoice."""
    return await shop.charge(call)


@activity.defn(name="crashes.refund")
async def refund(call: Call) -> None:
    """Refund the charge."""
    await shop.refund(call)


NAIVE_ACTIVITIES: Final = (create_record, delete_record, charge, refund)


@workflow.defn(name="NaiveSaga")
class NaiveSaga:
    """One order."""

    def __init__(self) -> None:
        self._stopped = False
        self._waiting = False
        self._steps = 0

    @workflow.signal
    def stop(self) -> None:
        """Have it fail before its next step."""
        self._stopped = True

    @workflow.query
    def waiting(self) -> bool:
        """Tell whether everything is committed."""
        return self._waiting

    @workflow.run
    async def run(self, start: NaiveOrder) -> None:
        """Run to the end, or undo what was done."""
        compensations: list[tuple[Callable[[Call], Awaitable[None]], str]] = []
        try:
            compensations.append((delete_record, start.order.record))
            await self._step(create_record, start.order.record, keyed=start.keyed)
            for invoice in start.order.invoices:
                self._go_on()
                charged = await self._step(charge, invoice, keyed=start.keyed)
                compensations.append((refund, charged))
            self._waiting = True
            await workflow.wait_condition(lambda: self._stopped or not start.order.waits)
            self._go_on()
        except BaseException:
            for undo, about in reversed(compensations):
                await self._step(undo, about, keyed=start.keyed)
            raise

    def _go_on(self) -> None:
        if self._stopped:
            raise ApplicationError("stopped", non_retryable=True)

    async def _step(self, what: Callable[[Call], Awaitable[Any]], about: str, *, keyed: bool) -> Any:  # noqa: ANN401  # the activity's
        self._steps += 1
        key = f"{workflow.info().workflow_id}-{self._steps}" if keyed else None
        return await workflow.execute_activity(what, Call(about, key), start_to_close_timeout=_SOON)
