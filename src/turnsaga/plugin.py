"""``TurnSagaPlugin``: what a worker and a client need so that turns run on them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from turnsaga.converting import with_pydantic
from turnsaga.ledger_activities import LedgerActivities
from turnsaga.recovery import RecoverTurn, Sweep
from turnsaga.store import SqlStore
from turnsaga.tool_activities import ToolActivities
from turnsaga.tools import Tools

__all__ = ["TurnSagaPlugin"]

# Imported once, outside: models that are imported again in each workflow's sandbox cost 400 ms at its
# first task, and a second copy of a class isn't the first.
_PASSED_THROUGH: Final = ("pydantic", "pydantic_core", "structlog", "turnsaga", "rfc8785")


class TurnSagaPlugin(SimplePlugin):
    """Adds the data converter, the workflow sandbox's passthrough, and the library's own parts.

    A client needs no more than ``TurnSagaPlugin()``; a codec, a failure converter or external storage that
    it has stays as it is. A worker gives its tools and its ledger, and gets
    the activities of each tool, the bookkeeping and the recovery workflows.
    """

    def __init__(self, tools: Tools | None = None, store: SqlStore | None = None) -> None:
        activities: Sequence[Callable[..., object]] = ()
        if tools is not None and store is not None:
            activities = (*LedgerActivities(store).all(), *ToolActivities(tools, store).all())
        super().__init__(
            "turnsaga",
            data_converter=with_pydantic,
            workflow_runner=_runner,
            workflows=[RecoverTurn, Sweep] if activities else None,
            activities=activities or None,
        )


def _runner(runner: WorkflowRunner | None) -> WorkflowRunner:
    if runner is None:
        runner = SandboxedWorkflowRunner()
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    return replace(runner, restrictions=runner.restrictions.with_passthrough_modules(*_PASSED_THROUGH))
