"""One model request: asked with the history that the ledger gives, streamed into the ledger's events."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.tools import ToolDefinition
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.scripted import ScriptedModel
from turnsaga import names
from turnsaga.attempts import heartbeating, stand_by
from turnsaga.errors import InvalidRequest, ModelUnavailable, StaleStep, StoreUnavailable
from turnsaga.keys import digest
from turnsaga.models import CallPlan, StepPlan, StepRef
from turnsaga.store import NewCall, NewReply, SqlStore, StepContext, StoredReply, Writer
from turnsaga.tool_activities import call_plan
from turnsaga.tools import (
    REPEAT,
    CommitPolicy,
    EffectTool,
    Tool,
    Tools,
    call_policy,
    parse_arguments,
    wants_repeat,
)
from turnsaga.transcript import PastTurn, turn_note

__all__ = ["ModelActivities", "history", "notices_text", "offered_schema"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_FLUSH_S: Final = 0.075
_INSTRUCTIONS: Final = (
    "You act for one user through tools. Some tools change things outside: call each at most once for one "
    "purpose, and report what its result says, not what you intended."
)
# What every vendor takes for an id of a call, with room for a number behind it.
_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_REPEAT_SCHEMA: Final = {
    "type": "boolean",
    "description": "True only if the user wants the very same thing done a second time in this turn; "
    "the user is asked then. Without it an equal call returns the result of the first.",
}

ModelFactory = Callable[[str, int, str], Model]
"""Gives the model of a name for an attempt (from 1) and what it is told about earlier turns."""


def infer(name: str, attempt: int, context: str) -> Model:
    """Return the scripted model, or a vendor's by the name that pydantic-ai gives it.

    Raises:
        ModelUnavailable: no such model, or its key isn't in the environment.
    """
    if name == "script":
        return ScriptedModel(attempt=attempt, context=context)
    try:
        return infer_model(name)
    except (UserError, ValueError, ImportError) as error:
        raise ModelUnavailable(name, str(error), retryable=False) from error


class ModelActivities:
    """The activity ``model.request``."""

    def __init__(self, store: SqlStore, tools: Tools, factory: ModelFactory = infer) -> None:
        self._store = store
        self._tools = tools
        self._factory = factory
        self._schemas = {tool.name: offered_schema(tool) for tool in tools}
        self._cards = tools.cards()

    def all(self) -> Sequence[Callable[..., object]]:
        """Return the activities, for a worker."""
        return [self.request]

    @activity.defn(name=names.MODEL_REQUEST)
    async def request(self, ref: StepRef) -> StepPlan:
        """Ask the model once, and return the calls to run.

        A reply that an earlier attempt stored is returned as it is: the model isn't asked again, since it
        could ask for other calls than those that are under way.
        """
        async with heartbeating():
            plan = await self._planned(ref)
        if plan.fenced:
            await stand_by()
        return plan

    async def _planned(self, ref: StepRef) -> StepPlan:
        context = await self._store.step_context(ref)
        if context.fenced:
            return StepPlan(step=ref.step, fenced=True)
        stored = context.stored
        if stored is None:
            stored = await self._ask(ref, context)
        if stored is None:
            return StepPlan(step=ref.step, fenced=True)
        return self._plan(ref, stored, context.policies)

    async def _ask(self, ref: StepRef, context: StepContext) -> StoredReply | None:
        """Ask, and store the reply; None once the turn is fenced."""
        attempt = activity.info().attempt
        if attempt > 1 and not await self._store.restart_step(ref, attempt, by=_writer()):
            return None
        notices = notices_text(context.notices)
        try:
            model = self._factory(context.model, attempt, notices)
            response = await self._streamed(ref, context, model, notices)
        except ModelHTTPError as error:
            again = error.status_code in {408, 409, 425, 429} or error.status_code >= 500
            reason = f"it answered {error.status_code}"
            raise _unavailable(ModelUnavailable(context.model, reason, retryable=again)) from None
        except ModelAPIError as error:
            raise _unavailable(
                ModelUnavailable(context.model, type(error).__name__, retryable=True)
            ) from None
        except ModelUnavailable as error:
            raise _unavailable(error) from None
        except StaleStep as error:
            raise ApplicationError(str(error), type=type(error).__name__) from None
        if response is None:
            return None
        return await self._store.record_reply(ref, self._reply(response, context.policies), by=_writer())

    async def _streamed(
        self, ref: StepRef, context: StepContext, model: Model, notices: str
    ) -> ModelResponse | None:
        """Return the whole reply, or None once the turn is fenced: nobody reads the rest."""
        parameters = ModelRequestParameters(function_tools=self._offered(context.policies))
        messages = history(context.history, notices)
        async with (
            _TextStream.open(self._store, ref) as text,
            model_request_stream(model, messages, model_request_parameters=parameters) as stream,
        ):
            async for event in stream:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    text.add(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    text.add(event.delta.content_delta)
                if text.stale is not None:
                    raise text.stale
                if text.fenced:
                    return None
            response = stream.get()
        return None if text.fenced else response

    def _offered(self, policies: Mapping[str, str]) -> list[ToolDefinition]:
        return [
            ToolDefinition(
                name=tool.name, description=tool.description, parameters_json_schema=self._schemas[tool.name]
            )
            for tool in self._tools
            if not self._is_off(tool, policies)
        ]

    def _is_off(self, tool: Tool, policies: Mapping[str, str]) -> bool:
        return (
            isinstance(tool, EffectTool)
            and call_policy(self._cards[tool.name], policies).commits is CommitPolicy.OFF
        )

    def _reply(self, response: ModelResponse, policies: Mapping[str, str]) -> NewReply:
        parts = [part for part in response.parts if isinstance(part, ToolCallPart)]
        cut = response.finish_reason == "length"
        calls = tuple(
            self._call(part, policies, cut=cut and index == len(parts) - 1)
            for index, part in enumerate(parts)
        )
        return NewReply(
            text="".join(part.content for part in response.parts if isinstance(part, TextPart)),
            finish=response.finish_reason or "stop",
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            calls=calls,
        )

    def _call(self, part: ToolCallPart, policies: Mapping[str, str], *, cut: bool) -> NewCall:
        """Classify one call. What can't be run gets its result here, and no row in the ledger of effects."""
        raw = part.args if isinstance(part.args, str) else part.args_as_json_str()

        def refused(why: str) -> NewCall:
            return NewCall(
                call_id=part.tool_call_id,
                tool=part.tool_name,
                arguments=raw,
                kind="refused",
                result=f"not run: {why}",
            )

        if part.tool_name not in self._tools:
            known = ", ".join(tool.name for tool in self._tools if not self._is_off(tool, policies))
            return refused(f"there is no tool {part.tool_name[:80]!r}; there are {known}")
        tool = self._tools[part.tool_name]
        if cut:
            return refused("the reply reached its length limit in this call; send the whole call again")
        if self._is_off(tool, policies):
            return refused("this tool isn't available in this turn")
        try:
            arguments = parse_arguments(tool, raw)
            arguments_digest = digest(arguments.model_dump(mode="json"))
        except InvalidRequest as error:
            return refused(str(error))
        return NewCall(
            call_id=part.tool_call_id,
            tool=tool.name,
            arguments=raw,
            kind="effect" if isinstance(tool, EffectTool) else "read",
            digest=arguments_digest,
            again=isinstance(tool, EffectTool) and (tool.repeatable or wants_repeat(tool, raw)),
        )

    def _plan(self, ref: StepRef, stored: StoredReply, policies: Mapping[str, str]) -> StepPlan:
        plans: list[CallPlan] = []
        # The last call so far on each resource: the next one there begins when it has ended.
        last: dict[tuple[str, str], int] = {}
        for call in stored.calls:
            if call.answered or call.tool not in self._tools:
                continue
            tool = self._tools[call.tool]
            try:
                arguments = parse_arguments(tool, call.arguments)
            except InvalidRequest:
                # Stored by a version whose tool took others. The call's effect, if it has one, goes on
                # from its own row; else its attempt says what is wrong, before anything is sent.
                arguments = None
            if not isinstance(tool, EffectTool):
                plans.append(call_plan(tool, call.index, arguments))
                continue
            policy = call_policy(
                self._cards[tool.name], policies, wanted_again=call.occurrence > 1 and not tool.repeatable
            )
            touched: Sequence[str] = ()
            if tool.resources is not None and arguments is not None:
                touched = tool.resources(arguments)
            places = [(tool.system, resource) for resource in touched]
            after = tuple(sorted({last[place] for place in places if place in last}))
            last.update(dict.fromkeys(places, call.index))
            plans.append(call_plan(tool, call.index, arguments, held=policy.holds, after=after))
        return StepPlan(step=ref.step, calls=tuple(plans), answered=len(stored.calls) - len(plans))


def offered_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments as a model is given it.

    A tool whose effects aren't repeatable takes one argument more, by which a second, equal effect is
    asked for: otherwise an equal call is taken for the same one.
    """
    schema: dict[str, Any] = tool.arguments.model_json_schema()
    if isinstance(tool, EffectTool) and not tool.repeatable and REPEAT not in tool.arguments.model_fields:
        schema["properties"] = {**schema.get("properties", {}), REPEAT: _REPEAT_SCHEMA}
    return schema


@dataclass
class _TextStream:
    """Text on its way into the ledger's events, in batches; ``fenced`` once the ledger takes no more."""

    store: SqlStore
    ref: StepRef
    by: Writer
    fenced: bool = False
    stale: StaleStep | None = None
    _waiting: list[str] = field(default_factory=list[str])

    @classmethod
    @asynccontextmanager
    async def open(cls, store: SqlStore, ref: StepRef) -> AsyncIterator["_TextStream"]:
        stream = cls(store, ref, _writer())
        flusher = asyncio.create_task(stream._flush_regularly())
        try:
            yield stream
        except BaseException:
            flusher.cancel()
            raise
        flusher.cancel()
        await stream._flush()

    def add(self, text: str) -> None:
        if text:
            self._waiting.append(text)

    async def _flush(self) -> None:
        batch, self._waiting = "".join(self._waiting), []
        if not batch or self.fenced:
            return
        try:
            self.fenced = not await self.store.append_text(self.ref, batch, by=self.by)
        except StoreUnavailable:
            self._waiting.insert(0, batch)
            raise

    async def _flush_regularly(self) -> None:
        while not self.fenced:
            await asyncio.sleep(_FLUSH_S)
            # While the ledger is away the text waits; the last flush is the one that has to work.
            try:
                with contextlib.suppress(StoreUnavailable):
                    await self._flush()
            except StaleStep as stale:
                self.stale = stale
                return


def _writer() -> Writer:
    """Return which attempt this is, for the ledger to tell its text from that of another one."""
    info = activity.info()
    return Writer(info.started_time, info.workflow_run_id or "", info.attempt)


def notices_text(notices: Sequence[str]) -> str:
    """Return what the model is told about effects of earlier turns, one a line."""
    return "\n".join(f"- {notice}" for notice in notices)


def history(turns: Sequence[PastTurn], notices: str) -> list[ModelMessage]:
    """Return the conversation as messages that every vendor takes.

    Each call is followed at once by its one result, in the reply's order; call ids that a model used
    twice are told apart.
    """
    instructions = _INSTRUCTIONS
    if notices:
        instructions += "\nFrom earlier turns; tell the user, and don't repeat these:\n" + notices
    messages: list[ModelMessage] = []
    waiting: list[ModelRequestPart] = []
    used: set[str] = set()
    for turn in turns:
        waiting.append(UserPromptPart(turn.message))
        for step in turn.steps:
            ids = [_unused(call.call_id, used) for call in step.calls]
            parts: list[ModelResponsePart] = [TextPart(step.text)] if step.text else []
            parts += [
                ToolCallPart(call.tool, call.arguments, tool_call_id=name)
                for call, name in zip(step.calls, ids, strict=True)
            ]
            messages += [ModelRequest(waiting, instructions=instructions), ModelResponse(parts)]
            waiting = [
                ToolReturnPart(
                    call.tool,
                    call.result,
                    tool_call_id=name,
                    outcome="failed" if call.is_error else "success",
                )
                for call, name in zip(step.calls, ids, strict=True)
            ]
        told = turn_note(turn.state)
        if told is not None:
            waiting.append(UserPromptPart(told))
    messages.append(ModelRequest(waiting, instructions=instructions))
    return messages


def _unused(call_id: str, used: set[str]) -> str:
    """Return the model's own id for a call where vendors take it and it is the first of its name."""
    base = call_id if _CALL_ID.fullmatch(call_id) else "call"
    name, count = base, 1
    while name in used:
        count += 1
        name = f"{base}_{count}"
    used.add(name)
    return name


def _unavailable(error: ModelUnavailable) -> ApplicationError:
    return ApplicationError(str(error), type="ModelUnavailable", non_retryable=not error.retryable)
