"""The other side: a saga as Temporal's own samples write it, with no ledger behind it.

Compensations are noted before each commit and run in reverse order when the run is cancelled
(https://github.com/temporalio/samples-python). Its activities have the same bodies.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        UserPromptPart,
    )
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    from benchmarks.bare_models import Asked, BareTurn, Booked
    from benchmarks.shop import Booking, book_body, two_requests, unbook_body
    from turnsaga.attempts import heartbeating

__all__ = ["BareSaga", "bare_activities"]

_SOON = timedelta(seconds=30)
_TOOL = ToolDefinition(
    name="book", description="Book an item.", parameters_json_schema=Booking.model_json_schema()
)


@activity.defn(name="bare.model")
async def ask(asked: Asked) -> list[Booked]:
    """Ask the model, stream its reply to nobody, and return its calls."""
    messages: list[ModelMessage] = [ModelRequest([UserPromptPart(asked.message)])]
    if asked.results:
        messages += [ModelResponse([TextPart("Booked")]), ModelRequest([UserPromptPart(asked.results)])]
    parameters = ModelRequestParameters(function_tools=[_TOOL])
    async with (
        heartbeating(),
        model_request_stream(
            two_requests(asked.effects), messages, model_request_parameters=parameters
        ) as stream,
    ):
        async for _ in stream:
            pass
        response = stream.get()
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    return [Booked(Booking.model_validate_json(call.args_as_json_str()).item) for call in calls]


@activity.defn(name="bare.commit")
async def commit(booked: Booked) -> str:
    """Commit one booking."""
    del booked
    return await book_body()


@activity.defn(name="bare.compensate")
async def compensate(booked: Booked) -> str:
    """Undo one booking."""
    del booked
    return await unbook_body()


@workflow.defn(name="BareSaga")
class BareSaga:
    """One turn: ask, commit, ask again; once cancelled, undo in reverse order."""

    @workflow.run
    async def run(self, turn: BareTurn) -> None:
        """Run until the model has nothing to ask for, or until cancelled."""
        compensations: list[Booked] = []
        try:
            calls = await self._ask(Asked(turn.message, turn.effects, ""))
            await asyncio.gather(*(self._commit(call, compensations) for call in calls))
            await self._ask(Asked(turn.message, turn.effects, "booked"))
        except BaseException:
            for booked in reversed(compensations):
                await workflow.execute_activity(
                    compensate, booked, start_to_close_timeout=_SOON, retry_policy=RetryPolicy()
                )
            raise

    async def _ask(self, asked: Asked) -> list[Booked]:
        return await workflow.execute_activity(
            ask,
            asked,
            start_to_close_timeout=timedelta(minutes=10),
            heartbeat_timeout=timedelta(seconds=5),
        )

    async def _commit(self, booked: Booked, compensations: list[Booked]) -> None:
        compensations.append(booked)
        await workflow.execute_activity(commit, booked, start_to_close_timeout=_SOON)


def bare_activities() -> list[Callable[..., object]]:
    """Return the activities, for a worker."""
    return [ask, commit, compensate]
