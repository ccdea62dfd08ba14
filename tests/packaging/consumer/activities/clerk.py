"""A model of the desk's own, without any model library: a clerk who lends what the message names."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Final

from temporalio import activity

from turnsaga import SqlStore, Tools, names
from turnsaga.attempts import heartbeating, stand_by
from turnsaga.keys import digest
from turnsaga.models import StepPlan, StepRef
from turnsaga.store import NewCall, NewReply, StepContext, StoredReply
from turnsaga.tool_activities import call_plan
from turnsaga.tools import parse_arguments

__all__ = ["CHATTING", "TOOL", "Clerk"]

TOOL: Final = "lend_book"
CHATTING: Final = " and chat"
"""A message that ends so keeps the clerk talking after the loans, until the turn is stopped."""


class Clerk:
    """Answers ``title, title[ and chat]``: first the loans, then a word."""

    def __init__(self, store: SqlStore, tools: Tools) -> None:
        self._store = store
        self._tools = tools

    def all(self) -> Sequence[Callable[..., object]]:
        """Return the activities, for a worker."""
        return [self.request]

    @activity.defn(name=names.MODEL_REQUEST)
    async def request(self, ref: StepRef) -> StepPlan:
        """Answer once, and return the calls to run; a stored answer is returned as it is."""
        async with heartbeating():
            plan = await self._planned(ref)
        if plan.fenced:
            await stand_by()
        return plan

    async def _planned(self, ref: StepRef) -> StepPlan:
        context = await self._store.step_context(ref)
        if context.fenced:
            return StepPlan(step=ref.step, fenced=True)
        stored = context.stored or await self._answer(ref, context)
        return StepPlan(step=ref.step, fenced=True) if stored is None else self._plan(ref, stored)

    async def _answer(self, ref: StepRef, context: StepContext) -> StoredReply | None:
        attempt = activity.info().attempt
        if attempt > 1 and not await self._store.restart_step(ref, attempt):
            return None
        titles = context.message.removesuffix(CHATTING).split(", ")
        if ref.step == 1:
            text, calls = "One moment.", tuple(self._call(title) for title in titles)
        else:
            text, calls = "Here you are.", ()
            while context.message.endswith(CHATTING):
                if not await self._store.append_text(ref, "And the weather! "):
                    return None
                await asyncio.sleep(0.05)
        if not await self._store.append_text(ref, text):
            return None
        return await self._store.record_reply(
            ref, NewReply(text=text, finish="stop", input_tokens=0, output_tokens=0, calls=calls)
        )

    def _call(self, title: str) -> NewCall:
        arguments = {"title": title}
        return NewCall(
            call_id=f"lend-{title}",
            tool=TOOL,
            arguments=json.dumps(arguments),
            kind="effect",
            digest=digest(arguments),
        )

    def _plan(self, ref: StepRef, stored: StoredReply) -> StepPlan:
        tool = self._tools[TOOL]
        waiting = tuple(
            call_plan(tool, call.index, parse_arguments(tool, call.arguments))
            for call in stored.calls
            if not call.answered
        )
        return StepPlan(step=ref.step, calls=waiting, answered=len(stored.calls) - len(waiting))
