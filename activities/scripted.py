"""The scripted model: the user's message says what the model replies. For development and tests.

The n-th model request of a turn gets the n-th reply of ``{"script": [reply, …]}``, further ones "Done.".
It streams like a vendor's model and takes the same path through the code.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from turnsaga.errors import ModelUnavailable

__all__ = ["ScriptedModel"]


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = None
    tool: str
    args: dict[str, Any] = Field(default_factory=dict)
    raw_args: str | None = None


class _Failure(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    status: int = Field(ge=400, le=599)
    times: int = Field(default=1, ge=0)


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    text: tuple[str, ...] = ()
    delay_ms: int = Field(default=0, ge=0, le=600_000)
    calls: tuple[_Call, ...] = ()
    finish: str | None = None
    error: _Failure | None = None


class _Script(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    script: tuple[_Reply, ...]


_DONE: Final = _Reply(text=("Done.",))
_HELP: Final = (
    "This is the scripted model. Send JSON such as "
    '{"script": [{"text": ["Charging…"], "calls": [{"tool": "charge_card", "args": {"customer": "cus_1", '
    '"amount": "12.00", "currency": "EUR", "invoice": "INV-1"}}]}]}, or one of '
)


def _story(tool: str, **args: Any) -> _Script:  # noqa: ANN401  # a call's JSON
    return _Script(
        script=(
            _Reply(text=("One moment, ", "please. "), delay_ms=20, calls=(_Call(tool=tool, args=args),)),
            _Reply(text=("Result: {{results}}",)),
        )
    )


_STORIES: Final[dict[str, _Script]] = {
    "/charge": _story("charge_card", customer="cus_1", amount="12.00", currency="EUR", invoice="INV-1"),
    "/mail": _story("send_invoice_email", to="ada@example.com", invoice="INV-1", amount="12.00"),
    "/record": _story("create_record", kind="ticket", fields={"subject": "Invoice INV-1"}),
}


@dataclass
class _ScriptedStream(StreamedResponse):
    """The reply as a stream of the model library's events."""

    reply: _Reply
    results: str
    context: str
    _model_name: str
    _at: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for chunk in self.reply.text:
            await asyncio.sleep(self.reply.delay_ms / 1000)
            said = chunk.replace("{{results}}", self.results).replace("{{context}}", self.context)
            self._usage += RequestUsage(output_tokens=max(1, len(said) // 4))
            for event in self._parts_manager.handle_text_delta(vendor_part_id="text", content=said):
                yield event
        for index, call in enumerate(self.reply.calls):
            raw = call.raw_args if call.raw_args is not None else json.dumps(call.args)
            called = self._parts_manager.handle_tool_call_delta(
                vendor_part_id=index,
                tool_name=call.tool,
                args=raw,
                tool_call_id=call.id or f"call_{index + 1}",
            )
            if called is not None:
                yield called
        self.finish_reason = _finish(self.reply)

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return self._model_name

    @property
    def provider_name(self) -> str:
        """The name of the provider."""
        return "turnsaga"

    @property
    def provider_url(self) -> str | None:
        """There is no provider to reach."""
        return None

    @property
    def timestamp(self) -> datetime:
        """When the reply began."""
        return self._at


class ScriptedModel(Model):
    """A model whose replies stand in the user's message.

    ``attempt`` counts tries of the same request from 1, for replies that fail first; ``context`` is what
    the model is told about earlier turns.
    """

    def __init__(self, *, attempt: int = 1, context: str = "") -> None:
        super().__init__()
        self._attempt = attempt
        self._context = context

    @property
    def model_name(self) -> str:
        """The name of the model."""
        return "script"

    @property
    def system(self) -> str:
        """The name of the provider."""
        return "turnsaga"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Return a whole reply."""
        async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
            async for _ in stream:
                pass
            return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,  # noqa: ARG002  # a script has no settings
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,  # noqa: ARG002  # as above
    ) -> AsyncIterator[StreamedResponse]:
        """Stream the reply of this request.

        Raises:
            ModelHTTPError: the script says that this attempt fails.
            ModelUnavailable: the message looks like a script and isn't one.
        """
        message, asked = _asked(messages)
        replies = _script(message).script
        reply = replies[asked] if asked < len(replies) else _DONE
        if reply.error is not None and self._attempt <= reply.error.times:
            raise ModelHTTPError(reply.error.status, self.model_name, {"scripted": True})
        yield _ScriptedStream(
            model_request_parameters=model_request_parameters,
            reply=reply,
            results=_results(messages),
            context=self._context,
            _model_name=self.model_name,
        )


def _asked(messages: Sequence[ModelMessage]) -> tuple[str, int]:
    """Return the turn's user message, and how many replies the turn has had."""
    message, replies = "", 0
    for item in messages:
        if isinstance(item, ModelResponse):
            replies += 1
            continue
        for part in item.parts:
            if isinstance(part, UserPromptPart):
                message, replies = str(part.content), 0
    return message, replies


def _results(messages: Sequence[ModelMessage]) -> str:
    last = messages[-1] if messages else None
    if not isinstance(last, ModelRequest):
        return ""
    return "; ".join(part.model_response_str() for part in last.parts if isinstance(part, ToolReturnPart))


def _script(message: str) -> _Script:
    story = _STORIES.get(message.strip())
    if story is not None:
        return story
    if not message.lstrip().startswith("{"):
        tools = ", ".join(sorted(_STORIES))
        return _Script(script=(_Reply(text=(f"{_HELP}{tools}.",)),))
    try:
        return _Script.model_validate_json(message)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "script"
        raise ModelUnavailable("script", f"{where}: {first['msg']}", retryable=False) from None


_FINISHES: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "tool_call": "tool_call",
    "content_filter": "content_filter",
}


def _finish(reply: _Reply) -> FinishReason:
    if reply.finish is None:
        return "tool_call" if reply.calls else "stop"
    return _FINISHES.get(reply.finish, "stop")
