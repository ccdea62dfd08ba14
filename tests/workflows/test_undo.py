"""What becomes of undos that fail, get lost or come too late."""

import itertools
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client

from tests.oracle import truth_of
from tests.stack import WHO, SandboxProcess, Turns, call, eventually, reply, turns_over
from tests.workflows.steps import THINKING, all_are, charge, invoice, record_name
from turnsaga.errors import ChangedSince, NotApplied, UndoRefused
from turnsaga.ledger import State, TurnState
from turnsaga.models import Principal
from turnsaga.recovery import RecoveryActivities
from turnsaga.store import Started
from turnsaga.testing import FakeSystem
from turnsaga.tools import Call, JsonObject, Limits, Once, Undone


async def test_lost_answer_at_abort_is_asked_about_and_then_undone(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    await sandbox.knobs("pay", apply_after_ms=100, latency_ms=600, drop_response=1, only={"op": "apply"})
    started = await turns.start(reply(charge(name)))
    await turns.reaches(started, "committing", "charge_card")
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    sent = [
        each
        for each in (await sandbox.truth())["calls"]
        if each["op"] == "apply" and each.get("identity") == name
    ]

    assert await turns.states(started) == {f"charge_card {name}": "compensated"}
    assert len(sent) == 1, "after the fence it is asked about, not sent again"
    await turns.must_agree(await truth_of(sandbox), started)


async def test_undo_that_never_works_is_shown_and_the_others_are_undone(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem()
    refuses = [""]
    system.before = lambda phase, made: (
        UndoRefused("the vault is closed") if phase == "undo" and made.effect == refuses[0] else None
    )
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        started = await turns.start(*(reply(call("note_down", identity=name)) for name in "ABC"), THINKING)
        await all_are(turns, started, ["committed"] * 3)
        refuses[0] = (await turns.effects(started))["note_down C"].effect
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started)
        states = await turns.states(started)
        await turns.must_agree(system.truth(), started)

    assert states == {
        "note_down A": "compensated",
        "note_down B": "compensated",
        "note_down C": "compensation_failed",
    }
    assert view.settlement is not None
    assert view.settlement.compensation_failed == (refuses[0],)
    assert view.effects[2].needs_attention
    assert view.effects[2].error == "the vault is closed"
    assert [identity for phase, _, identity in system.calls if phase == "undo"] == ["C", "B", "A"]


async def test_undo_that_throws_on_every_attempt_uses_up_its_budget_and_the_rest_goes_on(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem()
    throws = [""]
    system.before = lambda phase, made: (
        RuntimeError("boom") if phase == "undo" and made.effect == throws[0] else None
    )
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        started = await turns.start(*(reply(call("note_down", identity=name)) for name in "AB"), THINKING)
        await all_are(turns, started, ["committed"] * 2)
        throws[0] = (await turns.effects(started))["note_down B"].effect
        await turns.turns.abort(WHO, started.ref.turn)
        await turns.settled(started)
        states = await turns.states(started)

    assert states == {"note_down A": "compensated", "note_down B": "compensation_failed"}
    undos = [identity for phase, _, identity in system.calls if phase == "undo"]
    assert undos == ["B", "B", "B", "A"], "the tool allows three"


async def test_undo_has_its_own_budget_after_a_commit_used_up_its_own(client: Client, tmp_path: Path) -> None:
    system = FakeSystem()
    undos = itertools.count(1)

    def misbehave(phase: str, made: Call) -> Exception | None:
        if phase == "commit" and made.effect != first[0] and first[0]:
            return RuntimeError("no answer")
        if phase == "undo" and next(undos) < 3:
            return RuntimeError("no answer")
        if phase == "commit" and not first[0]:
            first[0] = made.effect
        return None

    first = [""]
    system.before = misbehave
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        started = await turns.start(
            reply(call("note_down", identity="A")), reply(call("note_down", identity="B")), THINKING
        )

        async def second_failed() -> bool:
            return (await turns.states(started)).get("note_down B") == "failed"

        await eventually(second_failed, within=30)
        await turns.turns.abort(WHO, started.ref.turn)
        await turns.settled(started)
        states = await turns.states(started)

    assert states == {"note_down A": "compensated", "note_down B": "failed"}
    assert sum(phase == "undo" for phase, _, _ in system.calls) == 3


async def test_same_tool_committed_three_times_is_undone_three_times_in_reverse(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem()
    tool = system.tool("note_down", repeatable=True)
    async with turns_over(client, tmp_path, [tool]) as turns:
        same = call("note_down", identity="A")
        started = await turns.start(reply(same, same), reply(same), THINKING)
        await all_are(turns, started, ["committed"] * 3)
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started)
        undone = [
            event.data["order"] for event in await turns.events(started) if event.kind == "tool_compensated"
        ]
        await turns.must_agree(system.truth(), started)

    assert len({effect.key for effect in view.effects}) == 3
    assert undone == [3, 2, 1]
    assert len(system.undone) == len(set(system.undone)) == 3


async def test_undo_that_shows_nothing_for_it_isn_t_believed(client: Client, tmp_path: Path) -> None:
    system = FakeSystem()

    async def does_nothing(request: JsonObject, receipt: JsonObject, call: Call) -> Undone:
        return Undone({})

    async def denies(request: JsonObject, receipt: JsonObject, call: Call) -> bool:
        return False

    tools = [system.tool("no_op", compensate=does_nothing), system.tool("read_back", check_undone=denies)]
    async with turns_over(client, tmp_path, tools) as turns:
        started = await turns.start(
            reply(call("no_op", identity="A")), reply(call("read_back", identity="B")), THINKING
        )
        await all_are(turns, started, ["committed"] * 2)
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started)

    assert [effect.state for effect in view.effects] == [State.COMPENSATION_FAILED] * 2
    assert [effect.error for effect in view.effects] == [
        "its undo returned no evidence that it was undone",
        "its undo was answered, and reading back shows it still there",
    ]


async def test_what_somebody_changed_since_stands_and_says_so(turns: Turns, sandbox: SandboxProcess) -> None:
    record = record_name()
    started = await turns.start(reply(call("create_record", kind="ticket", id=record)), THINKING)
    await turns.reaches(started, "committed", "create_record")
    act = {"system": "crm", "op": "edit", "identity": f"ticket/{record}", "fields": {"status": "mine"}}
    (await sandbox.http.post("/_act", json=act)).raise_for_status()
    await turns.turns.abort(WHO, started.ref.turn)
    view = await turns.settled(started)

    assert view.effects[0].state is State.STANDING
    assert view.effects[0].no_undo_reason == "somebody has changed the record since"
    await turns.must_agree(await truth_of(sandbox), started)


async def test_record_that_is_gone_already_counts_as_undone(turns: Turns, sandbox: SandboxProcess) -> None:
    """A4.5: somebody deleted it before; the refund that comes next is made all the same."""
    record, name = record_name(), invoice()
    started = await turns.start(
        reply(charge(name)), reply(call("create_record", kind="ticket", id=record)), THINKING
    )
    await turns.reaches(started, "committed", "create_record")
    act = {"system": "crm", "op": "delete", "identity": f"ticket/{record}"}
    (await sandbox.http.post("/_act", json=act)).raise_for_status()
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)

    assert set((await turns.states(started)).values()) == {"compensated"}
    await turns.must_agree(await truth_of(sandbox), started)


async def test_undo_that_works_at_its_fourth_attempt_comes_before_those_before_it(
    client: Client, tmp_path: Path
) -> None:
    """A4.2: strict reverse order, so the other one waits for it, within its bounds."""
    system, attempts = FakeSystem(), itertools.count(1)
    late = [""]
    system.before = lambda phase, made: (
        NotApplied("busy") if phase == "undo" and made.effect == late[0] and next(attempts) <= 3 else None
    )
    limits = Limits(undo_sends=5, undo_total=timedelta(seconds=30))
    async with turns_over(client, tmp_path, [system.tool("note_down", limits=limits)]) as turns:
        started = await turns.start(*(reply(call("note_down", identity=name)) for name in "AB"), THINKING)
        await all_are(turns, started, ["committed"] * 2)
        late[0] = (await turns.effects(started))["note_down B"].effect
        await turns.turns.abort(WHO, started.ref.turn)
        await turns.settled(started)
        states = await turns.states(started)
        await turns.must_agree(system.truth(), started)

    assert [identity for phase, _, identity in system.calls if phase == "undo"] == ["B"] * 4 + ["A"]
    assert set(states.values()) == {"compensated"}


async def test_unkeyed_undo_without_an_answer_is_never_sent_twice(client: Client, tmp_path: Path) -> None:
    system = FakeSystem(after=lambda phase, _: RuntimeError("lost") if phase == "undo" else None)
    tool = system.tool("note_down", undo_repeat=Once())
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(reply(call("note_down", identity="A")), THINKING)
        await all_are(turns, started, ["committed"])
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started)

    assert view.effects[0].state is State.COMPENSATION_FAILED
    assert sum(phase == "undo" for phase, _, _ in system.calls) == 1


async def test_unkeyed_undo_that_was_proved_not_sent_is_tried_again(client: Client, tmp_path: Path) -> None:
    refusals = itertools.count(1)
    system = FakeSystem(
        before=lambda phase, _: (
            NotApplied("no connection") if phase == "undo" and next(refusals) < 3 else None
        )
    )
    async with turns_over(client, tmp_path, [system.tool("note_down", undo_repeat=Once())]) as turns:
        started = await turns.start(reply(call("note_down", identity="A")), THINKING)
        await all_are(turns, started, ["committed"])
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started)

    assert view.effects[0].state is State.COMPENSATED
    assert len(system.undone) == 1


async def test_undo_overtaken_by_somebody_leaves_the_rest_to_be_undone(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem()

    async def overtaken(request: JsonObject, receipt: JsonObject, call: Call) -> Undone:
        raise ChangedSince("another hand was here")

    tools = [system.tool("note_down"), system.tool("note_over", compensate=overtaken)]
    async with turns_over(client, tmp_path, tools) as turns:
        started = await turns.start(
            reply(call("note_down", identity="A")), reply(call("note_over", identity="B")), THINKING
        )
        await all_are(turns, started, ["committed"] * 2)
        await turns.turns.abort(WHO, started.ref.turn)
        await turns.settled(started)
        states = await turns.states(started)

    assert states == {"note_down A": "compensated", "note_over B": "standing"}


async def test_model_that_is_down_fails_the_turn_and_what_it_did_is_undone(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    started = await turns.start(reply(charge(name)), {"error": {"status": 400, "times": 99}})
    view = await turns.settled(started)

    assert view.state is TurnState.FAILED
    assert "it answered 400" in (view.reason or "")
    assert await turns.states(started) == {f"charge_card {name}": "compensated"}
    await turns.must_agree(await truth_of(sandbox), started)


async def test_undo_that_halts_has_those_before_it_wait_for_a_person(client: Client, tmp_path: Path) -> None:
    system = FakeSystem()
    refuses = [""]
    system.before = lambda phase, made: (
        UndoRefused("the vault is closed") if phase == "undo" and made.effect == refuses[0] else None
    )
    tools = [system.tool("note_down"), system.tool("note_safe", on_undo_failure="halt")]
    async with turns_over(client, tmp_path, tools) as turns:
        started = await turns.start(
            reply(call("note_down", identity="A")),
            reply(call("note_safe", identity="B")),
            reply(call("note_down", identity="C")),
            THINKING,
        )
        await all_are(turns, started, ["committed"] * 3)
        refuses[0] = (await turns.effects(started))["note_safe B"].effect
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started)
        waiting = await turns.states(started)
        await turns.must_agree(system.truth(), started)
        await turns.turns.resolve(
            Principal(tenant=WHO.tenant, user="ops"), refuses[0], word="stands", note="kept"
        )
        sweeper = RecoveryActivities(turns.store, client, task_queue=turns.task_queue, adopt=True)
        await sweeper.sweep()
        await turns.reaches(started, "compensated", "note_down")
        await eventually(lambda: _is_compensated(turns, started, "note_down A"))
        states = await turns.states(started)
        await turns.must_agree(system.truth(), started)

    assert view.state is TurnState.ABORTED
    assert waiting == {
        "note_down A": "committed",
        "note_safe B": "compensation_failed",
        "note_down C": "compensated",
    }
    assert "waits for a person" in view.effects[0].summary
    assert states == {"note_down A": "compensated", "note_safe B": "standing", "note_down C": "compensated"}


async def _is_compensated(turns: Turns, started: Started, name: str) -> bool:
    return (await turns.states(started))[name] == "compensated"
