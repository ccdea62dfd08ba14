"""Every line that is logged inside an effect's activity says whose it is, whoever writes it."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from activities.model import ModelActivities
from tests.logs.captured import captured
from tests.stack import WHO, Turns, call, reply, say, turns_over
from turnsaga import names
from turnsaga.client import TurnClient
from turnsaga.models import EffectView, TurnResult, TurnStart
from turnsaga.plugin import TurnSagaPlugin
from turnsaga.saga import TurnSaga
from turnsaga.store import SqlStore, Started
from turnsaga.testing import FakeSystem
from turnsaga.tools import Call, EffectTool, Once, Prepared, Tools

THINKING = say(*["thinking "] * 400, delay_ms=50)
_log: structlog.stdlib.BoundLogger = structlog.get_logger("turnsaga.test")


class Talker:
    """A system whose tool says something in each of its phases, by both ways to log."""

    def __init__(self) -> None:
        self.lost = 1
        self.system = FakeSystem(before=self._says("before"), after=self._after)

    def tool(self) -> EffectTool[Any]:
        tool = self.system.tool("note_down")
        return replace(tool, prepare=self._prepare, limits=replace(tool.limits, landing_window=timedelta(0)))

    async def _prepare(self, arguments: Any, call: Call) -> Prepared:
        self._speak("prepare", call)
        return Prepared(arguments.model_dump())

    def _says(self, when: str) -> Any:
        def speak(phase: str, call: Call) -> None:
            self._speak(f"{when}.{phase}", call)

        return speak

    def _after(self, phase: str, call: Call) -> Exception | None:
        self._speak(f"after.{phase}", call)
        if phase == "commit" and self.lost:
            self.lost -= 1
            return RuntimeError("the answer is lost")
        return None

    @staticmethod
    def _speak(event: str, call: Call) -> None:
        _log.info(f"said.{event}", said_key=call.key, said_effect=call.effect)
        logging.getLogger("vendor").warning("said.%s too", event, extra={"said_key": call.key})


async def aborted(turns: Turns) -> tuple[Started, EffectView]:
    """Return a turn that was stopped after it had committed, and its one effect."""
    started = await turns.start(reply(call("note_down", identity="A")), THINKING)
    await turns.reaches(started, "committed", "note_down")
    await turns.turns.abort(WHO, started.ref.turn)
    view = await turns.settled(started)
    [effect] = view.effects
    return started, effect


def said(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"].startswith("said.")]


async def test_turn_effect_and_key_are_bound_in_every_phase(client: Client, tmp_path: Path) -> None:
    with captured("production") as logs:
        async with turns_over(client, tmp_path, [Talker().tool()]) as turns:
            started, effect = await aborted(turns)
    lines = said(logs.lines)
    phases = {line["event"].removesuffix(" too") for line in lines}
    ours = [
        line
        for line in logs.lines
        if line["event"] in {"commit.recorded", "undo.recorded", "commit.no_answer"}
    ]

    assert phases == {
        "said.prepare",
        "said.before.commit",
        "said.after.commit",
        "said.before.undo",
        "said.after.undo",
    }
    assert len(lines) >= 2 * len(phases)
    for line in lines:
        assert line["turn"] == started.ref.turn
        assert line["effect"] == effect.effect
        assert line["tool"] == "note_down"
        # The key that the vendor gets: the effect's own, or its undo's.
        assert line["key"] == line["said_key"]
    assert {line["key"] for line in lines if "undo" not in line["event"]} == {effect.key}
    assert {line["event"] for line in ours} == {"commit.recorded", "undo.recorded", "commit.no_answer"}
    assert all({"turn", "effect", "key", "tool"} <= set(line) for line in ours)


async def test_look_up_is_bound_too(client: Client, tmp_path: Path) -> None:
    talker = Talker()
    once = replace(talker.tool(), repeat=Once(), commit=talker.system.commit_once)
    with captured("production") as logs:
        async with turns_over(client, tmp_path, [once]) as turns:
            started = await turns.start(reply(call("note_down", identity="A")), say("ok"))
            [effect] = (await turns.settled(started)).effects
    lines = [line for line in said(logs.lines) if "lookup" in line["event"]]

    assert len(lines) == 2
    assert {(line["effect"], line["key"], line["turn"]) for line in lines} == {
        (effect.effect, effect.key, started.ref.turn)
    }


async def test_temporal_s_own_line_about_a_failed_attempt_says_whose_it_is(
    client: Client, tmp_path: Path
) -> None:
    """An attempt that can't be prepared fails in Temporal, which logs that with a traceback."""
    failures = [RuntimeError("4711 is what it was about")]

    async def prepare(arguments: Any, call: Call) -> Prepared:
        del call
        if failures:
            raise failures.pop()
        return Prepared(arguments.model_dump())

    with captured("production") as logs:
        async with turns_over(
            client, tmp_path, [replace(FakeSystem().tool("note_down"), prepare=prepare)]
        ) as turns:
            started = await turns.start(reply(call("note_down", identity="A")), say("ok"))
            [effect] = (await turns.settled(started)).effects
    [line] = [line for line in logs.lines if line["logger"] == "temporalio.activity"]

    assert line["event"].startswith("Completing activity as failed")
    assert (line["turn"], line["effect"], line["key"]) == (started.ref.turn, effect.effect, effect.key)
    assert "ApplicationError (PrepareFailed)" in line["exception"]
    assert "4711" not in logs.text


async def test_lines_of_effects_beside_each_other_are_not_mixed_up(client: Client, tmp_path: Path) -> None:
    talker = Talker()
    talker.lost = 0
    talker.system.latency = 0.05
    with captured("production") as logs:
        async with turns_over(client, tmp_path, [talker.tool()]) as turns:
            started = await turns.start(
                reply(*(call("note_down", identity=f"A{number}") for number in range(8))), say("ok")
            )
            await turns.settled(started)
    own = [line for line in said(logs.lines) if "said_effect" in line]

    assert len({line["effect"] for line in own}) == 8
    assert all(line["effect"] == line["said_effect"] and line["key"] == line["said_key"] for line in own)


async def test_what_the_ledger_s_thread_logs_says_whose_it_is(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")

    def speak(_: object) -> None:
        _log.info("said.in_a_transaction")

    with captured("production") as logs, structlog.contextvars.bound_contextvars(effect="eff_1"):
        await store._database.read(speak)
        structlog.contextvars.bind_contextvars(effect="eff_2")
        await store._database.read(speak)
    await store.close()

    assert [line["effect"] for line in logs.lines] == ["eff_1", "eff_2"]


@workflow.defn(name=names.TURN_WORKFLOW, sandboxed=False)
class TalkingTurn:
    """A turn that says what it does."""

    @workflow.init
    def __init__(self, start: TurnStart) -> None:
        self._saga = TurnSaga(start)

    @workflow.run
    async def run(self, start: TurnStart) -> TurnResult:  # noqa: ARG002  # the same argument as __init__
        return await self._saga.run(self._converse)

    async def _converse(self, saga: TurnSaga) -> None:
        for number in range(10):
            _log.info("said.step", number=number)
            plan = await saga.step()
            if plan.final:
                return
            await saga.perform(plan)


@pytest.mark.parametrize("dropping", [True, False])
async def test_replay_of_a_whole_turn_says_nothing_twice(
    client: Client,
    tmp_path: Path,
    dropping: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a cache each workflow task replays the turn from its beginning."""
    if not dropping:

        def keep(
            _logger: object, _method: str, event: structlog.typing.EventDict
        ) -> structlog.typing.EventDict:
            return event

        monkeypatch.setattr("turnsaga.logs._configure.drop_in_replay", keep)
    talker = Talker()
    talker.lost = 0
    tools = Tools([talker.tool()])
    store = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    await store.open()
    await store.write_tool_cards(tools.cards())
    queue = f"replaying-{dropping}"
    with captured("production") as logs:
        async with Worker(
            client,
            task_queue=queue,
            workflows=[TalkingTurn],
            activities=ModelActivities(store, tools).all(),
            plugins=[TurnSagaPlugin(tools, store)],
            max_cached_workflows=0,
        ):
            turns = Turns(client, store, tools, TurnClient(client, store, task_queue=queue), queue)
            started = await turns.start(
                reply(call("note_down", identity="A")), reply(call("note_down", identity="B")), say("ok")
            )
            await turns.settled(started)
            await turns.handle(started).result()
    await store.close()
    steps = [line["number"] for line in logs.lines if line["event"] == "said.step"]
    commits = [line["effect"] for line in logs.lines if line["event"] == "commit.recorded"]

    assert len(commits) == len(set(commits)) == 2
    assert (steps == [0, 1, 2]) is dropping, (
        "without the processor the replay is heard, or this tests nothing"
    )
