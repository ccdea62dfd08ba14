"""An abort at every moment of a turn, and what must be true after each."""

import asyncio
import itertools
from pathlib import Path

from temporalio.client import Client

from tests.oracle import truth_of
from tests.stack import (
    WHO,
    SandboxProcess,
    Turns,
    call,
    eventually,
    reply,
    say,
    turns_over,
)
from turnsaga import names
from turnsaga.client import TurnClient
from turnsaga.ledger import TurnState
from turnsaga.store import SqlStore, Started
from turnsaga.testing import FakeSystem, Note
from turnsaga.tools import Call, Prepared, Tools
from workers.build import build_worker
from workers.settings import WorkerSettings

_ids = itertools.count(1)


def charge(invoice: str, amount: str = "10.00") -> dict[str, object]:
    return call("charge_card", customer="cus_1", amount=amount, currency="EUR", invoice=invoice)


def invoice() -> str:
    return f"INV-A{next(_ids)}"


async def test_abort_before_the_first_task_asks_no_model_and_prepares_nothing(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem()
    tools = Tools([system.tool("note_down")])
    store = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    await store.open()
    web = TurnClient(client, store, task_queue="before-the-first-task")
    script = '{"script":[{"calls":[{"tool":"note_down","args":{"identity":"A"}}]}]}'
    started = await web.start(WHO, "c", message=script, start_key="k", model="script")
    aborted = await web.abort(WHO, started.ref.turn)
    settings = WorkerSettings(task_queue="before-the-first-task")

    async with build_worker(client, store, settings, tools=tools):
        view = await web.settled(WHO, started.ref.turn, timeout_s=20)
    history = await client.get_workflow_handle(started.ref.turn).fetch_history()
    asked = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    await store.close()

    assert aborted.first
    assert view.state is TurnState.ABORTED
    assert view.effects == ()
    assert system.calls == []
    assert asked == []


async def test_abort_signal_from_any_client_is_enough(turns: Turns, sandbox: SandboxProcess) -> None:
    name = invoice()
    await sandbox.knobs("pay", latency_ms=600)
    started = await turns.start(reply(charge(name)))
    await turns.reaches(started, "committing", "charge_card")

    # What another language's client sends: a bare signal with plain JSON.
    await turns.handle(started).signal(names.ABORT, {"reason": "elsewhere", "by": "ops", "more": [1]})
    view = await turns.settled(started)

    assert view.state is TurnState.ABORTED
    assert view.reason == "elsewhere"
    assert await turns.states(started) == {f"charge_card {name}": "compensated"}
    await turns.must_agree(await truth_of(sandbox), started)


async def test_abort_signal_without_or_with_a_wrong_payload_still_aborts(turns: Turns) -> None:
    for payload in ([], ["not an object"], [{"seen": "many"}], [{"reason": "x" * 10_000}]):
        started = await turns.start(say(*["word "] * 200, delay_ms=50))
        await turns.handle(started).signal(names.ABORT, args=payload)

        assert (await turns.settled(started)).state is TurnState.ABORTED


async def test_abort_while_the_model_streams_stops_the_stream_and_runs_nothing(turns: Turns) -> None:
    started = await turns.start(say(*["word "] * 400, delay_ms=50, calls=[charge(invoice())]))

    async def streaming() -> bool:
        page = await turns.store.event_page(WHO, started.ref.turn, after=0)
        return any(event.kind == "text_delta" for event in page.events)

    await eventually(streaming)
    await turns.turns.abort(WHO, started.ref.turn, seen=2)
    view = await turns.settled(started, within=10)
    kinds = [event.kind for event in await turns.events(started)]

    assert view.state is TurnState.ABORTED
    assert view.effects == ()
    assert kinds[kinds.index("turn_aborting") :] == ["turn_aborting", "turn_settled"]


async def test_abort_of_a_model_that_says_nothing_needs_no_answer_of_it(turns: Turns) -> None:
    """The signal ends the request: nothing of the turn would look at the ledger for a minute."""
    started = await turns.start(say("late", delay_ms=60_000))
    await eventually(lambda: _is_asked(turns, started))
    await turns.turns.abort(WHO, started.ref.turn)

    assert (await turns.settled(started, within=10)).state is TurnState.ABORTED


async def _is_asked(turns: Turns, started: Started) -> bool:
    return bool((await turns.handle(started).describe()).raw_description.pending_activities)


async def test_abort_while_a_call_is_prepared_leaves_no_row(client: Client, tmp_path: Path) -> None:
    system = FakeSystem()
    preparing, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(arguments: Note, call: Call) -> Prepared:
        preparing.set()
        await go_on.wait()
        return Prepared(arguments.model_dump(mode="json"))

    async with turns_over(client, tmp_path, [system.tool("note_down", prepare=slowly)]) as turns:
        started = await turns.start(reply(call("note_down", identity="A")))
        await asyncio.wait_for(preparing.wait(), 10)
        await turns.turns.abort(WHO, started.ref.turn)
        go_on.set()
        view = await turns.settled(started)

    assert view.state is TurnState.ABORTED
    assert view.effects == ()
    assert system.calls == []


async def test_commit_in_flight_at_abort_is_waited_for_and_undone(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """The create lands while the abort is settling: never "cancelled, nothing happened"."""
    record = f"RA{next(_ids)}"
    await sandbox.knobs("crm", apply_after_ms=100, latency_ms=1500)
    started = await turns.start(reply(call("create_record", kind="ticket", id=record)))
    await turns.reaches(started, "committing", "create_record")
    await asyncio.sleep(0.4)
    await sandbox.clear()
    await turns.turns.abort(WHO, started.ref.turn)
    while_aborting = await turns.view(started)
    await turns.settled(started)
    kinds = [event.kind for event in await turns.events(started) if event.kind.startswith("tool_")]

    assert while_aborting.state is TurnState.ABORTING
    assert while_aborting.settlement is None
    assert kinds == [
        "tool_prepared",
        "tool_committing",
        "tool_committed",
        "tool_compensating",
        "tool_compensated",
    ]
    await turns.must_agree(await truth_of(sandbox), started)


async def test_what_was_not_reached_at_abort_never_happens(turns: Turns, sandbox: SandboxProcess) -> None:
    name, record = invoice(), f"RA{next(_ids)}"
    await sandbox.knobs("mail", latency_ms=800)
    started = await turns.start(
        reply(call("send_invoice_email", to="ada@example.com", invoice=name, amount="10.00")),
        reply(call("create_record", kind="ticket", id=record)),
        reply(charge(name)),
        policies={"send_invoice_email": "immediate!"},
    )
    await turns.reaches(started, "committing", "send_invoice_email")
    await turns.turns.abort(WHO, started.ref.turn)
    view = await turns.settled(started)
    truth = await truth_of(sandbox)

    assert [(effect.tool, effect.state.value) for effect in view.effects] == [
        ("send_invoice_email", "standing")
    ]
    assert view.effects[0].no_undo_reason == "a mail that was sent can't be called back"
    assert {true.system for true in truth.effects if true.identity in {name, f"ticket/{record}"}} == {"mail"}
    await turns.must_agree(truth, started)


async def test_abort_between_tools_undoes_in_reverse_order_of_commit(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name, record = invoice(), f"RA{next(_ids)}"
    started = await turns.start(
        reply(call("create_record", kind="ticket", id=record, fields={"a": 1})),
        reply(call("update_record", kind="ticket", id=record, fields={"a": 2})),
        reply(charge(name)),
        say(*["thinking "] * 400, delay_ms=50),
    )
    await turns.reaches(started, "committed", "charge_card")
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    undone = [event.data["tool"] for event in await turns.events(started) if event.kind == "tool_compensated"]

    assert undone == ["charge_card", "update_record", "create_record"]
    await turns.must_agree(await truth_of(sandbox), started)


async def test_second_abort_cancel_and_signal_during_settling_change_nothing(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    first, second = invoice(), invoice()
    started = await turns.start(
        reply(charge(first)), reply(charge(second)), say(*["thinking "] * 400, delay_ms=50)
    )
    await turns.reaches(started, "committed", "charge_card")

    async def both() -> bool:
        return list((await turns.states(started)).values()) == ["committed", "committed"]

    await eventually(both)
    await sandbox.knobs("pay", latency_ms=500, only={"op": "undo"})
    answers = [await turns.turns.abort(WHO, started.ref.turn, reason="one")]
    await turns.reaches(started, "compensating", "charge_card")
    answers.append(await turns.turns.abort(WHO, started.ref.turn, reason="two"))
    await turns.handle(started).cancel()
    await turns.handle(started).signal(names.ABORT, {"reason": "three"})
    await turns.handle(started).cancel()
    view = await turns.settled(started)
    answers.append(await turns.turns.abort(WHO, started.ref.turn, reason="four"))
    undone = [
        event.data["identity"] for event in await turns.events(started) if event.kind == "tool_compensated"
    ]
    calls = [
        each
        for each in (await sandbox.truth())["calls"]
        if each["op"] == "undo" and each.get("identity") in {first, second}
    ]

    assert [(answer.first, answer.state.value) for answer in answers] == [
        (True, "aborting"),
        (False, "aborting"),
        (False, "aborted"),
    ]
    assert view.reason == "one"
    assert undone == [second, first]
    assert len(calls) == 2
    await turns.must_agree(await truth_of(sandbox), started)


async def test_abort_after_the_end_changes_nothing(turns: Turns, sandbox: SandboxProcess) -> None:
    name = invoice()
    started = await turns.start(reply(charge(name)), say("Charged."))
    before = await turns.settled(started)
    answer = await turns.turns.abort(WHO, started.ref.turn)
    after = await turns.view(started)

    assert (answer.first, answer.state) == (False, TurnState.COMPLETED)
    assert after == before
    assert after.effects[0].state == "committed"
    await turns.must_agree(await truth_of(sandbox), started)


async def test_native_cancel_with_a_commit_in_flight_is_not_swallowed(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    first, second = invoice(), invoice()
    await sandbox.knobs("pay", latency_ms=500)
    started = await turns.start(reply(charge(first)), reply(charge(second)))
    await turns.reaches(started, "committing", "charge_card")
    await turns.handle(started).cancel()
    await turns.settled(started)

    assert await turns.states(started) == {f"charge_card {first}": "compensated"}
    await turns.must_agree(await truth_of(sandbox), started)


async def test_turn_over_its_deadline_fails_and_is_settled(turns: Turns, sandbox: SandboxProcess) -> None:
    name = invoice()
    started = await turns.start(reply(charge(name)), say(*["thinking "] * 400, delay_ms=50), deadline_ms=1500)
    view = await turns.settled(started)

    assert view.state is TurnState.FAILED
    assert view.reason == "the turn took longer than its deadline of 1500 ms"
    assert await turns.states(started) == {f"charge_card {name}": "compensated"}
    await turns.must_agree(await truth_of(sandbox), started)


async def test_abort_of_an_evicted_workflow_is_handled_at_once(
    client: Client, sandbox: SandboxProcess, tmp_path: Path
) -> None:
    """With no cache every task replays the whole history: the flag, not a coroutine's memory, must carry."""
    system = FakeSystem(latency=0.3)
    async with turns_over(client, tmp_path, [system.tool("note_down")], max_cached_workflows=0) as turns:
        started = await turns.start(
            reply(call("note_down", identity="A")),
            reply(call("note_down", identity="B"), call("note_down", identity="C")),
            say(*["thinking "] * 400, delay_ms=50),
        )

        async def all_done() -> bool:
            return list((await turns.states(started)).values()) == ["committed"] * 3

        await eventually(all_done)
        await turns.turns.abort(WHO, started.ref.turn)
        await turns.settled(started, within=15)
        states = await turns.states(started)
        await turns.must_agree(system.truth(), started)

    assert set(states.values()) == {"compensated"}
