"""What both sides of a comparison share: the bodies of the activities, and how they tell the driver.

The bodies do nothing and take no time, so that what is measured is the engine: a vendor's real latency
would be the same on both sides and would only make the ratios look better.
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from temporalio import activity

from turnsaga.tools import Call, Committed, EffectTool, Keyed, Tools, Undone

__all__ = [
    "MARKS",
    "Booking",
    "Writing",
    "book_body",
    "effects_of",
    "mark",
    "model_name",
    "model_of",
    "shop_tools",
    "two_requests",
    "unbook_body",
    "writer_name",
]

MARKS: Final = "TURNSAGA_BENCH_MARKS"
"""The UDP port of loopback at which the driver hears what the bodies tell."""

_STREAM_S: Final = 60.0
_CHUNK_S: Final = 0.05
_wire: Final = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


class Booking(BaseModel):
    """Arguments of the one tool."""

    item: str


class Writing(BaseModel):
    """Arguments of the tool whose effects share something: the record that is written."""

    record: str


def mark(what: str) -> None:
    """Tell the driver that the activity's turn has come to a point, and when."""
    line = json.dumps({"turn": activity.info().workflow_id, "what": what, "at": time.time()})
    _wire.sendto(line.encode(), ("127.0.0.1", int(os.environ[MARKS])))


async def book_body() -> str:
    """Commit at the vendor."""
    mark("committed")
    return "receipt"


async def unbook_body() -> str:
    """Undo at the vendor."""
    mark("undone")
    return "undone"


def model_name(effects: int) -> str:
    """Return the name of the model that asks for so many effects: all that a turn says about its work."""
    return f"shop:{effects}"


def effects_of(name: str) -> int:
    """Return how many effects the model of a name asks for."""
    return int(name.removeprefix("shop:"))


def writer_name(records: Sequence[str]) -> str:
    """Return the name of the model that writes these records, side by side, and then has no more to say."""
    return f"writer:{','.join(records)}"


def model_of(name: str) -> Model:
    """Return the model of a name."""
    if name.startswith("writer:"):
        return _writer(name.removeprefix("writer:").split(","))
    return two_requests(effects_of(name))


def _writer(records: Sequence[str]) -> Model:
    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if any(isinstance(message, ModelResponse) for message in messages):
            yield "Written."
            return
        for number, record in enumerate(records):
            arguments = json.dumps({"record": record})
            yield {number: DeltaToolCall(name="write", json_args=arguments, tool_call_id=f"c{number}")}

    return FunctionModel(stream_function=stream)


def two_requests(effects: int) -> Model:
    """Return a model that first asks for so many effects, and then streams until it is stopped."""

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if not any(isinstance(message, ModelResponse) for message in messages):
            for number in range(effects):
                arguments = json.dumps({"item": f"item {number}"})
                yield {number: DeltaToolCall(name="book", json_args=arguments, tool_call_id=f"c{number}")}
            return
        yield "Booked. "
        mark("streaming")
        give_up = time.monotonic() + _STREAM_S
        while time.monotonic() < give_up:
            await asyncio.sleep(_CHUNK_S)
            yield "And so on. "

    return FunctionModel(stream_function=stream)


async def _commit(_request: Mapping[str, Any], call: Call) -> Committed:
    return Committed(receipt={"id": await book_body(), "key": call.key}, result="booked")


async def _compensate(_request: Mapping[str, Any], _receipt: Mapping[str, Any], _call: Call) -> Undone:
    return Undone(evidence={"id": await unbook_body()})


def shop_tools() -> Tools:
    """Return the turnsaga side's tools over the same bodies; ``write`` orders its effects on one record."""
    return Tools(
        [
            EffectTool(
                name="write",
                description="Write a record.",
                arguments=Writing,
                system="records",
                says="write {record}",
                undo_says="restore {record}",
                commit=_commit,
                reversible=True,
                commits="immediate",
                compensate=_compensate,
                repeat=Keyed(timedelta(days=1)),
                undo_repeat=Keyed(timedelta(days=1)),
                resources=lambda arguments: [arguments.record],
            ),
            EffectTool(
                name="book",
                description="Book an item.",
                arguments=Booking,
                system="shop",
                says="book {item}",
                undo_says="cancel the booking of {item}",
                commit=_commit,
                reversible=True,
                commits="immediate",
                compensate=_compensate,
                repeat=Keyed(timedelta(days=1)),
                undo_repeat=Keyed(timedelta(days=1)),
            ),
        ]
    )
