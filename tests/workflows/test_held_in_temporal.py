"""Held effects and queued turns where something is lost: signals, runs, windows, tools that stop a turn."""

import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client

from tests.stack import WHO, Turns, call, eventually, reply, say, turns_over
from turnsaga.errors import NotApplied
from turnsaga.ledger import TurnState
from turnsaga.models import EffectView
from turnsaga.recovery import RecoveryActivities
from turnsaga.store import Started
from turnsaga.testing import FakeSystem, Note
from turnsaga.tools import Call, EffectTool, Limits, Tools

THINKING = say(*["thinking "] * 400, delay_ms=50)
_names = itertools.count(1)


def note(tool: str, name: str, **more: Any) -> dict[str, Any]:
    return call(tool, identity=name, **more)


async def asked(turns: Turns, started: Started) -> EffectView:
    async def there() -> EffectView | None:
        effects = (await turns.view(started)).effects
        return next((one for one in effects if one.held_for == "confirmation"), None)

    found: EffectView = await eventually(there, what="a question")
    return found


def texts(arguments: Note) -> list[str]:
    return [arguments.text]


def final(system: FakeSystem, **declared: Any) -> EffectTool[Any]:
    return system.tool("shout", reversible=False, **declared)


async def signals_get_lost(turns: Turns) -> None:
    async def dies(turn: str, name: str, payload: object) -> None:
        del turn, name, payload

    turns.turns._signal = dies  # type: ignore[method-assign]


async def test_answer_whose_signal_is_lost_is_made_up_for_by_the_sweeper(
    client: Client, tmp_path: Path
) -> None:
    """The web tier died between the answer and its signal."""
    system = FakeSystem()
    async with turns_over(client, tmp_path, [final(system)]) as turns:
        sweeper = RecoveryActivities(turns.store, client, task_queue=turns.task_queue, adopt=True)
        started = await turns.start(reply(note("shout", "A")), say("ok"))
        shown = await asked(turns, started)
        await signals_get_lost(turns)
        answered = await turns.turns.confirm(WHO, shown.effect, version=shown.version, digest=shown.digest)

        async def nudged() -> bool:
            return (await sweeper.sweep()).nudged > 0

        await eventually(nudged, what="a sweep that nudges")
        view = await turns.settled(started)
        await turns.must_agree(system.truth(), started)

    assert answered.first
    assert [one.state.value for one in view.effects] == ["committed"]


async def test_question_that_nobody_answers_ends_with_its_window(client: Client, tmp_path: Path) -> None:
    system = FakeSystem()
    tools = Tools([final(system)], confirm_within=timedelta(milliseconds=700))
    async with turns_over(client, tmp_path, tools) as turns:
        started = await turns.start(reply(note("shout", "A")), say("{{results}}"))
        view = await turns.settled(started)
        text = "".join(str(event.data.get("text", "")) for event in await turns.events(started))

    assert view.state is TurnState.COMPLETED
    assert [one.state.value for one in view.effects] == ["released"]
    assert (view.effects[0].error or "").startswith("expired")
    assert "expired" in text
    assert system.applied == []


async def test_failed_commit_stops_its_turn_where_its_tool_says_so(client: Client, tmp_path: Path) -> None:
    """The first is undone, the second failed, the third was never sent."""
    system = FakeSystem()

    def declines(phase: str, told: Call) -> Exception | None:
        key = next((key for _, key, identity in system.calls if identity == "B"), None)
        return NotApplied("declined") if (phase, told.key) == ("commit", key) else None

    system.before = declines
    tool = system.tool("note_down", commits="turn_end", on_failure="abort_turn")
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(
            reply(note("note_down", "A"), note("note_down", "B"), note("note_down", "C")),
            say("ok"),
            policies={"note_down": "turn_end"},
        )
        view = await turns.settled(started)
        await turns.must_agree(system.truth(), started)

    assert view.state is TurnState.ABORTED
    assert [one.state.value for one in view.effects] == ["compensated", "failed", "released"]
    assert "it failed, and its tool stops the turn then" in (view.reason or "")


async def test_failed_commit_leaves_the_others_otherwise(client: Client, tmp_path: Path) -> None:
    system = FakeSystem()

    def declines(phase: str, told: Call) -> Exception | None:
        key = next((key for _, key, identity in system.calls if identity == "B"), None)
        return NotApplied("declined") if (phase, told.key) == ("commit", key) else None

    system.before = declines
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        started = await turns.start(
            reply(note("note_down", "A"), note("note_down", "B"), note("note_down", "C")),
            say("ok"),
            policies={"note_down": "turn_end"},
        )
        view = await turns.settled(started)
        await turns.must_agree(system.truth(), started)

    assert view.state is TurnState.COMPLETED
    assert [one.state.value for one in view.effects] == ["committed", "failed", "committed"]


async def test_queued_turn_whose_run_is_gone_ends_without_having_begun(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem()
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        sweeper = RecoveryActivities(turns.store, client, task_queue=turns.task_queue, adopt=True)
        first = await turns.start(THINKING, conversation="c")
        second = await turns.start(reply(note("note_down", "A")), conversation="c", on_busy="queue")
        await turns.handle(second).terminate("an operator did it")

        async def recovered() -> bool:
            return (await sweeper.sweep()).recovered > 0

        await eventually(recovered, what="a sweep that recovers")
        gone = await turns.settled(second)
        await turns.turns.abort(WHO, first.ref.turn)
        await turns.settled(first)
        third = await turns.start(say("ok"), conversation="c")
        after = await turns.settled(third)

    assert (gone.state, after.state) == (TurnState.ABORTED, TurnState.COMPLETED)
    assert system.applied == []


async def test_queued_turn_begins_although_nobody_tells_it(client: Client, tmp_path: Path) -> None:
    """The run that ended the turn before it died before its signal: the queued one asks by itself."""
    system = FakeSystem()
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        first = await turns.start(THINKING, conversation="c")
        second = await turns.start(reply(note("note_down", "A")), conversation="c", on_busy="queue")
        await turns.handle(first).terminate("its worker is gone for good")
        await turns.turns.abort(WHO, first.ref.turn)
        await turns.store.next_steps(first.ref)
        view = await turns.settled(second)

    assert view.state is TurnState.COMPLETED
    assert [identity for _, identity in system.applied] == ["A"]


async def test_turns_that_wait_for_each_other_s_resources_both_end(client: Client, tmp_path: Path) -> None:
    system = FakeSystem(latency=0.1)
    tool = system.tool(
        "note_down",
        resources=texts,
        limits=Limits(
            landing_window=timedelta(milliseconds=500),
            send_by=timedelta(seconds=2),
            wait=timedelta(minutes=5),
            undo_total=timedelta(seconds=20),
        ),
    )
    async with turns_over(client, tmp_path, [tool]) as turns:
        numbers = [next(_names) for _ in range(2)]
        one, other = [
            await turns.start(
                reply(note("note_down", f"{number}-1", text=first)),
                say("a moment ", delay_ms=500, calls=[note("note_down", f"{number}-2", text=second)]),
                say("ok"),
            )
            for number, first, second in zip(numbers, ("x", "y"), ("y", "x"), strict=True)
        ]
        views = [await turns.settled(started) for started in (one, other)]
        await turns.must_agree(system.truth(), one, other)

    states = [[effect.state.value for effect in view.effects] for view in views]
    assert states == [["committed", "committed"], ["committed", "released"]]
    assert "wait for each other" in (views[1].effects[1].error or "")
