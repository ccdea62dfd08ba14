"""The lending desk's turn: at most one round of loans, then a last word."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from turnsaga import TurnResult, TurnSaga, TurnStart, names

__all__ = ["LendingTurn"]


@workflow.defn(name=names.TURN_WORKFLOW)
class LendingTurn:
    """One turn at the desk."""

    @workflow.init
    def __init__(self, start: TurnStart) -> None:
        self._saga = TurnSaga(start)

    @workflow.run
    async def run(self, start: TurnStart) -> TurnResult:  # noqa: ARG002  # the same argument as __init__
        """Lend, then complete or settle."""
        return await self._saga.run(_lend)


async def _lend(saga: TurnSaga) -> None:
    asked = await saga.step()
    await saga.perform(asked)
    if not (await saga.step()).final:
        raise ApplicationError("the clerk asked for loans twice", type="AskedTwice")
