"""``<tool>.read``: run a tool that changes nothing."""

from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnsaga.attempts import bounded, started
from turnsaga.errors import InvalidRequest, ToolOutcome
from turnsaga.models import CallRef
from turnsaga.store import SqlStore
from turnsaga.tool_activities._common import call_before, said
from turnsaga.tools import ReadTool, parse_arguments

__all__ = ["ReadAttempts"]


class ReadAttempts:
    """Attempts to read."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def run(self, tool: ReadTool[Any], ref: CallRef) -> None:
        """Read, and store the result; a read may run twice, its first result stays."""
        context = await self._store.call_context(ref)
        if context.result is not None or context.fenced:
            return
        try:
            arguments = parse_arguments(tool, context.arguments)
            call = call_before(ref, context.user, key="", within=tool.timeout)
            result: object = await bounded(started(tool.read, arguments, call), within=tool.timeout)
        except (InvalidRequest, ToolOutcome) as error:
            await self._store.record_result(ref, said(error), is_error=True)
        except Exception as error:  # noqa: BLE001  # a tool's own code may raise anything
            if activity.info().attempt < 3:
                raise ApplicationError(
                    f"{tool.name} failed ({type(error).__name__}); it is tried again"
                ) from None
            await self._store.record_result(ref, f"failed ({type(error).__name__})", is_error=True)
        else:
            await self._store.record_result(ref, result, is_error=False)
