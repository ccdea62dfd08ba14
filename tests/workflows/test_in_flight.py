"""Calls in flight at an abort that can't be stopped: they block, swallow, hang, and land later."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.deployment import deployment_tools
from tests.oracle import truth_of
from tests.stack import WHO, SandboxProcess, Turns, call, eventually, reply, say, turns_over
from tests.workflows.steps import THINKING, charge, invoice, record_name
from turnsaga.ledger import State, TurnState
from turnsaga.recovery import RecoveryActivities
from turnsaga.store import Started
from turnsaga.testing import FakeSystem
from turnsaga.tools import Call, Committed, JsonObject, Keyed, Limits, Once, Undone

SHORT = Limits(
    call=timedelta(milliseconds=500),
    send_by=timedelta(milliseconds=300),
    landing_window=timedelta(milliseconds=300),
    resolve=timedelta(seconds=20),
    undo_call=timedelta(milliseconds=500),
    undo_total=timedelta(seconds=20),
)


@dataclass
class Blocking:
    """A system whose client blocks: plain functions, run in threads, that land when they are let go."""

    system: FakeSystem = field(default_factory=FakeSystem)
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    undo_go_on: threading.Event = field(default_factory=threading.Event)

    def commit(self, request: JsonObject, call: Call) -> Committed:
        self.begun.set()
        self.go_on.wait(30)
        self.system.applied.append((call.key, str(request["identity"])))
        return Committed(receipt={"key": call.key})

    def undo(self, request: JsonObject, receipt: JsonObject, call: Call) -> Undone:
        self.system.calls.append(("undo", call.key, str(request["identity"])))
        self.undo_go_on.wait(30)
        self.system.undone.append(str(receipt["key"]))
        return Undone({"struck": receipt["key"]})

    def is_undone(self, _: JsonObject, receipt: JsonObject, __: Call) -> bool:
        return receipt["key"] in self.system.undone

    def tool(self, name: str, **declared: Any) -> Any:
        fields = {"commit": self.commit, "repeat": Once(), "limits": SHORT, **declared}
        return self.system.tool(name, **fields)


@asynccontextmanager
async def stopped(
    client: Client, folder: Path, blocking: Blocking, tool: Any, *, before: Any = None
) -> AsyncIterator[tuple[Turns, Started]]:
    """Commit A by the tool ``before``, if there is one, and stop the turn while B is in flight."""
    earlier = [] if before is None else [before]
    async with turns_over(client, folder, [*earlier, tool]) as turns:
        replies = [reply(call(each.name, identity="A")) for each in earlier]
        started = await turns.start(*replies, reply(call(tool.name, identity="B")), THINKING)
        await eventually(blocking.begun.is_set)
        await turns.turns.abort(WHO, started.ref.turn)
        yield turns, started
        blocking.go_on.set()
        blocking.undo_go_on.set()


async def kinds(turns: Turns, started: Started) -> list[str]:
    return [event.kind for event in await turns.events(started)]


async def test_blocking_call_is_waited_for_and_undone(client: Client, tmp_path: Path) -> None:
    """A1.2: a plain function that sleeps before it sends; nothing is decided until it has ended."""
    blocking = Blocking()
    tool = blocking.tool("block", limits=Limits())
    async with stopped(client, tmp_path, blocking, tool) as (turns, started):
        await asyncio.sleep(0.5)
        meanwhile = await turns.states(started)
        blocking.go_on.set()
        view = await turns.settled(started)
        states = await turns.states(started)
        await turns.must_agree(blocking.system.truth(), started)

    assert meanwhile == {"block B": "committing"}
    assert view.state is TurnState.ABORTED
    assert states == {"block B": "compensated"}
    assert len(blocking.system.applied) == 1


async def test_blocking_call_that_outlives_its_limit_isn_t_taken_for_not_done(
    client: Client, tmp_path: Path
) -> None:
    """It may send as long as it goes on: "not found" proves nothing until then, however long that is."""
    blocking = Blocking()
    async with stopped(client, tmp_path, blocking, blocking.tool("block")) as (turns, started):
        await turns.reaches(started, "unknown", "block")
        await asyncio.sleep(3)
        meanwhile = await turns.states(started)
        blocking.go_on.set()
        await turns.settled(started)
        states = await turns.states(started)
        seen = await kinds(turns, started)

    assert meanwhile == {"block B": "unknown"}
    assert states == {"block B": "compensated"}
    assert "tool_failed" not in seen
    assert len(blocking.system.applied) == 1


async def test_what_can_t_be_asked_doesn_t_hold_up_the_rest_and_is_undone_when_it_shows(
    client: Client, tmp_path: Path
) -> None:
    blocking = Blocking()
    tool, before = blocking.tool("block", lookup=None), blocking.system.tool("note_down")
    async with stopped(client, tmp_path, blocking, tool, before=before) as (turns, started):
        view = await turns.settled(started, within=15)
        settled = await turns.states(started)
        blocking.go_on.set()
        await turns.reaches(started, "committed", "block")
        sweeper = RecoveryActivities(turns.store, client, task_queue=turns.task_queue, adopt=True)
        await sweeper.sweep()
        await turns.reaches(started, "compensated", "block")
        await turns.must_agree(blocking.system.truth(), started)

    assert settled == {"note_down A": "compensated", "block B": "unknown"}
    assert view.settlement is not None
    assert len(view.settlement.unknown) == 1
    assert view.effects[1].needs_attention


async def test_coroutine_that_swallows_its_cancellation_is_waited_for_no_longer_than_its_limit(
    client: Client, tmp_path: Path
) -> None:
    blocking, let_go = Blocking(), asyncio.Event()

    async def stubborn(request: JsonObject, call: Call) -> Committed:
        blocking.begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return await blocking.system.commit_once(request, call)

    tool = blocking.tool("stubborn", commit=stubborn)
    async with stopped(client, tmp_path, blocking, tool) as (turns, started):
        await turns.reaches(started, "unknown", "stubborn")
        let_go.set()
        await turns.settled(started)
        states = await turns.states(started)
        await turns.must_agree(blocking.system.truth(), started)

    assert states == {"stubborn B": "compensated"}


async def test_function_that_blocks_the_loop_and_stops_heartbeats_is_applied_once(
    client: Client, tmp_path: Path
) -> None:
    """The server gives its attempt up after five seconds, and the next one finds what it did."""
    system = FakeSystem()

    async def freeze(request: JsonObject, call: Call) -> Committed:
        time.sleep(6)  # noqa: ASYNC251  # the very fault
        return await system.commit_once(request, call)

    tool = system.tool("freeze", commit=freeze, repeat=Once(), limits=Limits())
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(reply(call("freeze", identity="A")), say("ok"))
        view = await turns.settled(started, within=60)
        states = await turns.states(started)
        await turns.must_agree(system.truth(), started)

    assert view.state is TurnState.COMPLETED
    assert states == {"freeze A": "committed"}
    assert len(system.applied) == 1


async def test_undo_that_outlives_its_limit_is_never_sent_twice(client: Client, tmp_path: Path) -> None:
    """It has no key: while it goes on it may still be done, and what it returns in the end counts."""
    blocking = Blocking()
    blocking.go_on.set()
    tool = blocking.tool(
        "block", compensate=blocking.undo, check_undone=blocking.is_undone, undo_repeat=Once()
    )
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(reply(call("block", identity="A")), THINKING)
        await turns.reaches(started, "committed", "block")
        await turns.turns.abort(WHO, started.ref.turn)
        await asyncio.sleep(4)
        meanwhile = await turns.states(started)
        blocking.undo_go_on.set()
        await turns.settled(started)
        states = await turns.states(started)
        await turns.must_agree(blocking.system.truth(), started)

    assert meanwhile == {"block A": "compensating"}
    assert states == {"block A": "compensated"}
    assert [phase for phase, _, _ in blocking.system.calls] == ["undo"]


@pytest.mark.parametrize("answered", [True, False])
async def test_create_in_flight_at_abort_is_undone_whether_its_answer_comes_or_not(
    turns: Turns, sandbox: SandboxProcess, *, answered: bool
) -> None:
    """A1.1: the CRM applies at 0.2 s and answers at 1.5 s, or cuts the connection then; abort at 0.5 s."""
    record = record_name()
    knobs = {"apply_after_ms": 200, "latency_ms": 1500, "drop_response": 0 if answered else 1}
    await sandbox.knobs("crm", **knobs, only={"op": "apply"})
    started = await turns.start(reply(call("create_record", kind="ticket", id=record)), THINKING)
    await turns.reaches(started, "committing", "create_record")
    await asyncio.sleep(0.5)
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    seen = await kinds(turns, started)

    assert await turns.states(started) == {f"create_record ticket/{record}": "compensated"}
    assert ("tool_unknown" in seen) is not answered
    assert "tool_failed" not in seen
    await turns.must_agree(await truth_of(sandbox), started)


# ---------------------------------------------------------------- the hanging commit


async def watched(turns: Turns, started: Started, applied: Callable[[], Any]) -> list[str]:
    """Return what the ledger said while the charge hadn't landed yet."""
    said: list[str] = []
    while not await applied():
        said += (await turns.states(started)).values()
        await asyncio.sleep(0.1)
    return said


async def test_hanging_commit_leaves_nothing_standing_and_is_never_said_not_to_have_happened(
    client: Client, sandbox: SandboxProcess, tmp_path: Path
) -> None:
    """PAY holds the request for 8 s before it applies it, its client gives up after 2 s, abort at 1 s."""
    name = invoice()
    await sandbox.clear()
    await sandbox.knobs("pay", apply_after_ms=8000, latency_ms=12000, only={"op": "apply"})
    async with deployment_tools(sandbox.vendor) as deployed:
        tool = deployed.effect("charge_card")
        impatient = replace(tool, limits=replace(tool.limits, call=timedelta(seconds=2)))
        async with turns_over(client, tmp_path, [impatient]) as turns:
            started = await turns.start(reply(charge(name)), THINKING)
            await turns.reaches(started, "committing", "charge_card")
            await asyncio.sleep(1)
            await turns.turns.abort(WHO, started.ref.turn)

            async def landed() -> bool:
                return any(true.identity == name for true in (await truth_of(sandbox)).effects)

            said = await watched(turns, started, landed)
            await turns.settled(started, within=60)
            states = await turns.states(started)
            truth = await truth_of(sandbox)
            await turns.must_agree(truth, started)
    await sandbox.clear()
    [true] = [each for each in truth.effects if each.identity == name]

    assert set(said) == {"committing", "unknown"}
    assert states == {f"charge_card {name}": "compensated"}
    assert (true.applied, true.undone, true.standing) == (1, 1, 0)


# ---------------------------------------------------------------- undone unasked


async def test_unknown_outcome_that_its_tool_undoes_unasked(client: Client, tmp_path: Path) -> None:
    """In a turn that runs: the model is told that it isn't done, and the turn goes on."""
    system = FakeSystem(after=lambda phase, _: RuntimeError("lost") if phase == "commit" else None)
    receipts = list[dict[str, Any]]()

    async def cancel(request: JsonObject, receipt: JsonObject, call: Call) -> Undone:
        """Cancel by the effect's key, whatever became of it."""
        receipts.append(dict(receipt))
        if call.effect_key not in system.undone:
            system.undone.append(call.effect_key)
        return Undone({"cancelled": call.effect_key})

    tool = system.tool(
        "note_down", compensate=cancel, on_unknown="compensate", undo_repeat=Keyed(timedelta(hours=1))
    )
    async with turns_over(client, tmp_path, [tool, system.tool("note_more", lookup=None)]) as turns:
        started = await turns.start(reply(call("note_down", identity="A")), say("{{results}}"))
        view = await turns.settled(started)
        events = await turns.events(started)
        await turns.must_agree(system.truth(), started)
    text = "".join(event.data["text"] for event in events if event.kind == "text_delta")

    assert view.state is TurnState.COMPLETED
    assert [effect.state for effect in view.effects] == [State.COMPENSATED]
    assert receipts == [{}]
    assert "its outcome got lost, so it was undone at once" in text
    assert [phase for phase, _, _ in system.calls] == ["commit"]
