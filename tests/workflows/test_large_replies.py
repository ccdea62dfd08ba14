"""A model that says more, or odder things, than a script may hold."""

import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from temporalio.testing import ActivityEnvironment

from activities.model import ModelActivities
from tests.stack import WHO
from turnsaga.models import CallRef, StepPlan, StepRef
from turnsaga.store import NewTurn, SqlStore
from turnsaga.testing import FakeSystem
from turnsaga.tool_activities._commits import CommitAttempts
from turnsaga.tool_activities._stragglers import Stragglers
from turnsaga.tools import Tools

LARGE = 3_000_000
Said = Callable[[], AsyncIterator[str | DeltaToolCalls]]


@dataclass
class Asked:
    """A model's one reply to a turn's first step, with what became of it."""

    store: SqlStore
    tools: Tools
    step: StepRef
    requests: "itertools.count[int]"
    model: ModelActivities

    async def plan(self) -> StepPlan:
        return await ActivityEnvironment().run(self.model.request, self.step)

    async def text(self) -> str:
        page = await self.store.event_page(WHO, self.step.turn, after=0, limit=100_000)
        return "".join(str(event.data["text"]) for event in page.events if event.kind == "text_delta")


async def asked(folder: Path, system: FakeSystem, said: Said) -> Asked:
    store, requests = SqlStore(f"sqlite:///{folder / 'ledger.db'}"), itertools.count()
    await store.open()

    async def stream(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        next(requests)
        async for part in said():
            yield part

    def factory(*_: object) -> Model:
        return FunctionModel(stream_function=stream)

    new = NewTurn(
        principal=WHO, conversation="c", start_key="k", message="m", model="large", model_asked=None,
        policies={}, deadline_ms=None, nonce="n",
    )  # fmt: skip
    turn = (await store.start_turn(new)).ref
    tools = Tools([system.tool("note_down")])
    step = StepRef(tenant=turn.tenant, turn=turn.turn, step=1)
    return Asked(store, tools, step, requests, ModelActivities(store, tools, factory))


async def test_argument_of_three_megabytes_is_one_effect_with_one_key(tmp_path: Path) -> None:
    """A11.1, A3.9: it is stored, keyed and sent; what crosses Temporal stays small."""
    system = FakeSystem()

    async def said() -> AsyncIterator[str | DeltaToolCalls]:
        whole = json.dumps({"identity": "A", "text": "x" * LARGE})
        for number, start in enumerate(range(0, len(whole), 100_000)):
            name = "note_down" if number == 0 else None
            part = whole[start : start + 100_000]
            yield {0: DeltaToolCall(name=name, json_args=part, tool_call_id="c1")}

    one = await asked(tmp_path, system, said)
    plan = await one.plan()
    again = await one.plan()
    ref = CallRef(tenant=one.step.tenant, turn=one.step.turn, step=1, index=0)
    outcome = await ActivityEnvironment().run(
        CommitAttempts(one.store, Stragglers()).run, one.tools.effect("note_down"), ref
    )
    repeated = await ActivityEnvironment().run(
        CommitAttempts(one.store, Stragglers()).run, one.tools.effect("note_down"), ref
    )
    await one.store.close()

    assert plan == again
    assert next(one.requests) == 1, "the model is asked once"
    assert len(system.applied) == 1
    assert outcome.effect is not None
    assert outcome.effect == repeated.effect
    assert len(plan.model_dump_json()) + len(outcome.model_dump_json()) < 10_000


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (["x" * 100_000] * 30, "x" * LARGE),
        (["before\x00after"], "before\x00after"),
        (["half \ud83d", "\ude00 whole"], "half 😀 whole"),
    ],
    ids=["3 MB", "NUL", "halves"],
)
async def test_text_of_any_size_and_content_is_stored_and_told_on(
    tmp_path: Path, words: list[str], whole: str
) -> None:
    """A11.1, A24.1: a reply is asked for once, whatever it says."""

    async def said() -> AsyncIterator[str | DeltaToolCalls]:
        for word in words:
            yield word

    one = await asked(tmp_path, FakeSystem(), said)
    plan = await one.plan()
    text = await one.text()
    context = await one.store.step_context(one.step.model_copy(update={"step": 2}))
    told: Any = context.history[-1].steps[0].text
    await one.store.close()

    assert plan.calls == ()
    assert next(one.requests) == 1
    # In two events a character may come in two halves; together they are one.
    assert text.encode("utf-16", "surrogatepass").decode("utf-16") == whole
    assert told == whole
