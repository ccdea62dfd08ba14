"""The activities of every registered tool."""

from collections.abc import Callable, Sequence
from typing import Any

from structlog.contextvars import bind_contextvars
from temporalio import activity

from turnsaga import names
from turnsaga.attempts import heartbeating
from turnsaga.models import CallOutcome, CallRef, EffectRef, Resolution
from turnsaga.store import SqlStore
from turnsaga.tool_activities._commits import CommitAttempts
from turnsaga.tool_activities._lookups import LookupAttempts
from turnsaga.tool_activities._reads import ReadAttempts
from turnsaga.tool_activities._stragglers import Stragglers
from turnsaga.tool_activities._together import Together
from turnsaga.tool_activities._undos import UndoAttempts
from turnsaga.tools import EffectTool, ReadTool, Tools

__all__ = ["ToolActivities"]


class ToolActivities:
    """Activities over registered tools and a ledger."""

    def __init__(self, tools: Tools, store: SqlStore) -> None:
        self._tools = tools
        stragglers = Stragglers()
        self._commits = CommitAttempts(store, stragglers)
        self._lookups = LookupAttempts(store)
        self._undos = UndoAttempts(store, stragglers)
        self._reads = ReadAttempts(store)
        self._together = Together()

    def all(self) -> Sequence[Callable[..., object]]:
        """Return the activities of every registered tool, for a worker."""
        found: list[Callable[..., object]] = []
        for tool in self._tools:
            if isinstance(tool, ReadTool):
                found.append(self._read_activity(tool))
                continue
            found += [self._prepare_activity(tool), self._commit_activity(tool)]
            if tool.lookup is not None:
                found.append(self._lookup_activity(tool))
            if tool.compensate is not None:
                found.append(self._compensate_activity(tool))
        return found

    # Activities are closures over their tool: one type a tool and phase, as they read in the Temporal UI.

    def _prepare_activity(self, tool: EffectTool[Any]) -> Callable[..., object]:
        @activity.defn(name=names.prepare_activity(tool.name))
        async def prepare(ref: CallRef) -> CallOutcome:
            bind_contextvars(tool=tool.name, turn=ref.turn)
            async with heartbeating():
                return await self._together.ended(ref, self._commits.prepare(tool, ref))

        return prepare

    def _commit_activity(self, tool: EffectTool[Any]) -> Callable[..., object]:
        @activity.defn(name=names.commit_activity(tool.name))
        async def commit(ref: CallRef) -> CallOutcome:
            bind_contextvars(tool=tool.name, turn=ref.turn)
            async with heartbeating():
                return await self._together.ended(ref, self._commits.run(tool, ref))

        return commit

    def _lookup_activity(self, tool: EffectTool[Any]) -> Callable[..., object]:
        @activity.defn(name=names.lookup_activity(tool.name))
        async def lookup(ref: EffectRef) -> Resolution:
            bind_contextvars(tool=tool.name, turn=ref.turn, effect=ref.effect)
            async with heartbeating():
                return await self._lookups.run(tool, ref)

        return lookup

    def _compensate_activity(self, tool: EffectTool[Any]) -> Callable[..., object]:
        @activity.defn(name=names.compensate_activity(tool.name))
        async def compensate(ref: EffectRef) -> CallOutcome:
            bind_contextvars(tool=tool.name, turn=ref.turn, effect=ref.effect)
            async with heartbeating():
                return await self._undos.run(tool, ref)

        return compensate

    def _read_activity(self, tool: ReadTool[Any]) -> Callable[..., object]:
        @activity.defn(name=names.read_activity(tool.name))
        async def read(ref: CallRef) -> None:
            bind_contextvars(tool=tool.name, turn=ref.turn)
            async with heartbeating():
                await self._together.ended(ref, self._reads.run(tool, ref))

        return read
