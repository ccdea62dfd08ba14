"""Deploys in the middle of turns: a worker of another version takes over what the one before has begun."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from activities.deployment import deployment_tools
from activities.model import ModelActivities
from tests.oracle import must_be_whole
from tests.stack import WHO, SandboxProcess, Turns, call, eventually, reply, say
from tests.workflows.steps import charge, charges, invoice
from tests.workflows.stories import (
    halfway,
    happened,
    once_and_undone,
    order_of_undo,
    text_of,
    undoing,
)
from turnsaga import names
from turnsaga.client import TurnClient
from turnsaga.ledger import State, TurnState
from turnsaga.models import EffectView, TurnResult, TurnStart
from turnsaga.plugin import TurnSagaPlugin
from turnsaga.saga import TurnSaga
from turnsaga.store import SqlStore, Started
from turnsaga.testing import FakeSystem
from turnsaga.tools import Call, EffectTool, JsonObject, Tool, Tools, Undone
from workers.build import build_worker
from workers.settings import WorkerSettings

_ids = itertools.count(1)


@workflow.defn(name=names.TURN_WORKFLOW, sandboxed=False)
class NextAgentTurn:
    """The turn of the version after: it pauses before it acts, as runs that have begun on it do."""

    @workflow.init
    def __init__(self, start: TurnStart) -> None:
        self._saga = TurnSaga(start)

    @workflow.run
    async def run(self, start: TurnStart) -> TurnResult:  # noqa: ARG002  # the same argument as __init__
        return await self._saga.run(_converse_with_pauses)


async def _converse_with_pauses(saga: TurnSaga) -> None:
    while not (plan := await saga.step()).final:
        if workflow.patched("pauses-before-it-acts"):
            await workflow.sleep(timedelta(milliseconds=1))
        await saga.perform(plan)


@dataclass
class Deploys:
    """A queue and a ledger for workers of two versions, each with a connection of its own."""

    client: Client
    another: Client
    store: SqlStore
    queue: str

    def before(self, tools: Tools) -> Worker:
        settings = WorkerSettings(task_queue=self.queue, drain_s=10)
        return build_worker(self.client, self.store, settings, tools=tools)

    def after(self, tools: Tools) -> Worker:
        return Worker(
            self.another,
            task_queue=self.queue,
            workflows=[NextAgentTurn],
            activities=ModelActivities(self.store, tools).all(),
            plugins=[TurnSagaPlugin(tools, self.store)],
            max_heartbeat_throttle_interval=timedelta(milliseconds=100),
        )

    async def turns(self, tools: Tools) -> Turns:
        """Return turns of the version before."""
        await self.store.write_tool_cards(tools.cards())
        web = TurnClient(self.client, self.store, task_queue=self.queue)
        return Turns(self.client, self.store, tools, web, self.queue)


@pytest.fixture
async def deploys(client: Client, tmp_path: Path, sandbox: SandboxProcess) -> AsyncIterator[Deploys]:
    await sandbox.clear()
    another = await Client.connect(
        client.service_client.config.target_host, data_converter=pydantic_data_converter
    )
    store = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    await store.open()
    yield Deploys(client, another, store, f"deploys-{next(_ids)}")
    await store.close()
    await sandbox.clear()


@asynccontextmanager
async def deployed(before: Worker, after: Worker) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Run the worker before, until what is given is called; from then on the one after."""
    async with AsyncExitStack() as ends:
        first = await ends.enter_async_context(AsyncExitStack())
        await first.enter_async_context(before)

        async def deploy() -> None:
            await ends.enter_async_context(after)
            await first.aclose()

        yield deploy


def of_the_next_version(tool: Tool) -> Tool:
    """Return a tool that says and bounds things otherwise."""
    if not isinstance(tool, EffectTool):
        return tool
    limits = replace(tool.limits, call=timedelta(seconds=20), sends=7, undo_sends=9)
    return replace(tool, says=f"now {tool.says}", description=f"Now: {tool.description}", limits=limits)


async def test_turns_that_a_deploy_meets_in_the_middle_settle_and_go_on_under_the_next_version(
    deploys: Deploys, sandbox: SandboxProcess
) -> None:
    """A20.1: a commit in flight, an undo in flight, a question; then an abort, and an answer."""
    async with deployment_tools(sandbox.vendor) as tools:
        turns = await deploys.turns(tools)
        name, letter = invoice(), invoice()
        after = deploys.after(Tools([of_the_next_version(tool) for tool in tools]))
        async with deployed(deploys.before(tools), after) as deploy:
            asked = await turns.start(
                reply(call("send_invoice_email", to="ada@example.com", invoice=letter, amount="10.00")),
                reply(charge(name)),
                say("Done."),
                policies={"send_invoice_email": "confirmed"},
            )
            question = await held(turns, asked)
            undone = await halfway(turns, sandbox, answers_after_ms=300)
            await turns.turns.abort(WHO, undone.started.ref.turn)
            await sandbox.knobs("pay", latency_ms=4000, only={"op": "undo", "identity": undone.first})
            await undoing(turns, undone.started, undone.first)
            flying = await halfway(turns, sandbox, answers_after_ms=2500)
            await deploy()
            await turns.turns.abort(WHO, flying.started.ref.turn)
            await turns.turns.confirm(WHO, question.effect, version=question.version, digest=question.digest)
            ends = [
                await must_be_whole(turns, sandbox, started)
                for started in (undone.started, flying.started, asked)
            ]

    assert [view.state for view in ends] == [TurnState.ABORTED, TurnState.ABORTED, TurnState.COMPLETED]
    for story in (undone, flying):
        assert await happened(sandbox, story) == once_and_undone(story)
        assert await order_of_undo(turns, story.started) == [
            story.second, story.first, f"ticket/{story.record}"
        ]  # fmt: skip
    assert [effect.state for effect in ends[2].effects] == [State.COMMITTED] * 2
    assert await charges(sandbox, name) == 1


async def held(turns: Turns, started: Started) -> EffectView:
    async def there() -> EffectView | None:
        effects = (await turns.view(started)).effects
        return next((one for one in effects if one.held_for == "confirmation"), None)

    found: EffectView = await eventually(there, what="a question")
    return found


class Order(BaseModel):
    """What is paid or shipped, as the version before has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: str
    amount: str


class OrderWithCurrency(Order):
    """The same in the version after: a currency has to be named."""

    currency: str


@dataclass
class Shop(FakeSystem):
    """A system whose undo remembers what it was given."""

    undone_from: list[tuple[JsonObject, JsonObject]] = field(
        default_factory=list[tuple[JsonObject, JsonObject]]
    )

    async def undo(self, request: JsonObject, receipt: JsonObject, call: Call) -> Undone:
        self.undone_from.append((request, receipt))
        return await super().undo(request, receipt, call)

    def tools(self, arguments: type[Order]) -> Tools:
        told: dict[str, Any] = {"arguments": arguments, "says": "{identity} for {amount}"}
        return Tools([self.tool("ship", **told), self.tool("pay", **told, commits="confirmed")])


async def test_held_arguments_that_the_next_version_can_t_take_are_refused_before_anything_is_sent(
    deploys: Deploys,
) -> None:
    """A21.1: held and confirmed with {identity, amount}; the tool needs a currency by then."""
    shop = Shop()
    turns = await deploys.turns(shop.tools(Order))
    after = deploys.after(shop.tools(OrderWithCurrency))
    async with deployed(deploys.before(turns.tools), after) as deploy:
        started = await turns.start(
            reply(call("ship", identity="A", amount="1")),
            reply(call("pay", identity="B", amount="2")),
            say("told: {{results}}"),
            policies={"pay": "confirmed"},
        )
        question = await held(turns, started)
        await deploy()
        await turns.turns.confirm(WHO, question.effect, version=question.version, digest=question.digest)
        view = await must_be_whole(turns, shop, started)
        text = await text_of(turns, started)

    assert view.state is TurnState.COMPLETED
    assert await turns.states(started) == {"ship A": "committed", "pay B": "failed"}
    refused = view.effects[1].error or ""
    assert refused.startswith("stale: not sent, its tool takes other arguments now")
    assert "currency" in refused
    assert refused in text
    assert [identity for phase, _, identity in shop.calls if phase == "commit"] == ["A"]


async def test_effect_of_the_version_before_is_undone_from_the_data_that_it_stored(
    deploys: Deploys,
) -> None:
    """A21.1: the stored request lacks what the tool needs by now, and the undo works from it all the same."""
    shop = Shop()
    turns = await deploys.turns(shop.tools(Order))
    after = deploys.after(shop.tools(OrderWithCurrency))
    async with deployed(deploys.before(turns.tools), after) as deploy:
        started = await turns.start(
            reply(call("ship", identity="A", amount="1")),
            reply(call("pay", identity="B", amount="2")),
            policies={"pay": "confirmed"},
        )
        await held(turns, started)
        await deploy()
        await turns.turns.abort(WHO, started.ref.turn)
        view = await must_be_whole(turns, shop, started)

    assert view.state is TurnState.ABORTED
    assert await turns.states(started) == {"ship A": "compensated", "pay B": "released"}
    assert shop.undone_from == [({"identity": "A", "amount": "1"}, {"key": view.effects[0].key})]
