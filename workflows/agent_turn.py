"""``AgentTurn``: one conversation turn. The model is asked, its calls run, until it answers without any."""

from typing import Final

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from turnsaga import names
from turnsaga.models import TurnResult, TurnStart
from turnsaga.saga import TurnSaga

__all__ = ["AgentTurn"]

MAX_STEPS: Final = 50
"""Model requests that one turn may make: a model that calls tools for ever ends as a failed turn."""


@workflow.defn(name=names.TURN_WORKFLOW, sandboxed=False)
class AgentTurn:
    """One turn of a conversation."""

    @workflow.init
    def __init__(self, start: TurnStart) -> None:
        self._saga = TurnSaga(start)

    @workflow.run
    async def run(self, start: TurnStart) -> TurnResult:  # noqa: ARG002  # the same argument as __init__
        """Converse, then complete or settle."""
        return await self._saga.run(_converse)


async def _converse(saga: TurnSaga) -> None:
    for _ in range(MAX_STEPS):
        reply = await saga.step()
        if reply.final:
            return
        await saga.perform(reply)
    raise ApplicationError(f"the model asked for tools in {MAX_STEPS} replies in a row", type="TooManySteps")
