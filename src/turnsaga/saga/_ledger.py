"""How a workflow asks the ledger."""

from datetime import timedelta
from typing import TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

__all__ = ["book", "patient"]

R = TypeVar("R", bound=BaseModel)


async def book(activity: str, argument: BaseModel, result: type[R]) -> R:
    """Ask the ledger in a local activity; while it is away in an ordinary one, whose wait is seen."""
    try:
        booked: R = await workflow.execute_local_activity(
            activity,
            argument,
            result_type=result,
            start_to_close_timeout=timedelta(seconds=20),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
    except ActivityError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.non_retryable:
            raise error.cause from None
    else:
        return booked
    seen: R = await workflow.execute_activity(
        activity,
        argument,
        result_type=result,
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=patient(timedelta(milliseconds=500)),
        summary=f"{activity}: waiting for the ledger",
    )
    return seen


def patient(initial: timedelta) -> RetryPolicy:
    """Retry until the activity's own bound: how often something is *sent* is the ledger's to say."""
    return RetryPolicy(initial_interval=initial, maximum_interval=timedelta(seconds=5))
