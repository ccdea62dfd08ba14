"""What becomes of calls that fail, get lost or repeat."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from tests.oracle import truth_of
from tests.stack import WHO, SandboxProcess, Turns, call, reply, say, turns_over
from tests.workflows.steps import THINKING, charge, charges, invoice, record_name
from turnsaga.keys import sub_key
from turnsaga.ledger import State, TurnState
from turnsaga.models import CallRef, StepRef
from turnsaga.store import NewCall, NewReply, NewTurn, SqlStore
from turnsaga.testing import FakeSystem
from turnsaga.tool_activities._commits import CommitAttempts
from turnsaga.tool_activities._stragglers import Stragglers
from turnsaga.tools import Call, Committed, JsonObject, Keyed, Limits, Once


async def test_lost_answer_of_a_keyed_commit_is_asked_for_by_sending_it_again(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    await sandbox.knobs("pay", drop_response=1)
    started = await turns.start(reply(charge(name)), say("{{results}}"))
    view = await turns.settled(started)
    kinds = [event.kind for event in await turns.events(started)]

    assert view.state is TurnState.COMPLETED
    assert view.effects[0].state is State.COMMITTED
    assert "tool_unknown" in kinds
    assert await charges(sandbox, name) == 1
    await turns.must_agree(await truth_of(sandbox), started)


async def test_lost_answer_of_a_mail_stays_unknown_and_is_never_sent_twice(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    await sandbox.knobs("mail", drop_response=1)
    started = await turns.start(
        reply(call("send_invoice_email", to="ada@example.com", invoice=name, amount="10.00")),
        say("{{results}}"),
        policies={"send_invoice_email": "immediate!"},
    )
    view = await turns.settled(started)
    events = await turns.events(started)
    text = "".join(event.data["text"] for event in events if event.kind == "text_delta")
    sent = [
        each
        for each in (await sandbox.truth())["calls"]
        if each["system"] == "mail" and each.get("identity") == name
    ]

    assert view.state is TurnState.COMPLETED
    assert view.effects[0].state is State.UNKNOWN
    assert view.effects[0].needs_attention
    assert view.settlement is not None
    assert view.settlement.unknown == (view.effects[0].effect,)
    assert "outcome unknown" in text
    assert len(sent) == 1


async def test_refused_charge_fails_alone_and_the_turn_goes_on(turns: Turns, sandbox: SandboxProcess) -> None:
    name, record = invoice(), record_name()
    await sandbox.knobs("pay", fail={"status": 402, "times": 1, "applied": False})
    started = await turns.start(
        reply(charge(name)), reply(call("create_record", kind="ticket", id=record)), say("{{results}}")
    )
    view = await turns.settled(started)

    assert view.state is TurnState.COMPLETED
    assert await turns.states(started) == {
        f"charge_card {name}": "failed",
        f"create_record ticket/{record}": "committed",
    }
    await turns.must_agree(await truth_of(sandbox), started)


async def test_parallel_calls_run_side_by_side_and_each_has_its_end(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """One of three fails early; the others neither stop nor get lost, and an abort settles each."""
    name, record = invoice(), record_name()
    await sandbox.knobs("pay", latency_ms=900)
    await sandbox.knobs("mail", latency_ms=500)
    await sandbox.knobs("crm", fail={"status": 422, "times": 1, "applied": False})
    started = await turns.start(
        reply(
            charge(name),
            call("create_record", kind="ticket", id=record),
            call("send_invoice_email", to="ada@example.com", invoice=name, amount="10.00"),
        ),
        THINKING,
        policies={"send_invoice_email": "immediate!"},
    )
    await turns.reaches(started, "committed", "charge_card")
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    kinds = [event.kind for event in await turns.events(started)]

    assert kinds.index("tool_failed") > [i for i, kind in enumerate(kinds) if kind == "tool_committing"][2], (
        "all three gates open before the first ends"
    )
    assert await turns.states(started) == {
        f"charge_card {name}": "compensated",
        f"create_record ticket/{record}": "failed",
        f"send_invoice_email {name}": "standing",
    }
    await turns.must_agree(await truth_of(sandbox), started)


async def test_repeat_of_a_call_in_one_turn_is_the_same_effect(turns: Turns, sandbox: SandboxProcess) -> None:
    name = invoice()
    started = await turns.start(
        reply(charge(name, "10"), charge(name, "10.00")), reply(charge(name, "10.0")), say("{{results}}")
    )
    view = await turns.settled(started)
    text = "".join(event.data["text"] for event in await turns.events(started) if event.kind == "text_delta")

    assert len(view.effects) == 1
    assert "repeats an earlier call" in text
    assert await charges(sandbox, name) == 1


async def test_second_commit_on_an_unsettled_identity_waits_and_then_isn_t_sent(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem(after=lambda phase, _: RuntimeError("lost") if phase == "commit" else None)
    limits = Limits(wait=timedelta(milliseconds=300), landing_window=timedelta(0))
    once = system.tool("note_once", commit=system.commit_once, repeat=Once(), lookup=None, limits=limits)
    async with turns_over(client, tmp_path, [once]) as turns:
        started = await turns.start(
            reply(call("note_once", identity="A", text="1")), reply(call("note_once", identity="A", text="2"))
        )
        view = await turns.settled(started)

    assert [effect.state.value for effect in view.effects] == ["unknown", "released"]
    assert "waited" in (view.effects[1].error or "")
    assert len(system.applied) == 1


async def test_once_and_lookup_found_is_committed_and_not_found_is_failed(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem()
    lost = itertools.count(1)
    system.before = lambda phase, _: (
        RuntimeError("never arrived") if phase == "commit" and next(lost) == 1 else None
    )
    system.after = lambda phase, _: RuntimeError("answer lost") if phase == "commit" else None
    tool = system.tool("note_once", commit=system.commit_once, repeat=Once())
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(
            reply(call("note_once", identity="A")), reply(call("note_once", identity="B")), say("ok")
        )
        await turns.settled(started)
        states = await turns.states(started)
        await turns.must_agree(system.truth(), started)

    assert states == {"note_once A": "failed", "note_once B": "committed"}
    assert [phase for phase, _, _ in system.calls].count("commit") == 2


async def test_one_tool_with_two_calls_sends_two_keys(client: Client, tmp_path: Path) -> None:
    system, keys = FakeSystem(), list[str]()

    async def create_then_pay(request: JsonObject, call: Call) -> Committed:
        keys.extend(sub_key(call.key, step) for step in ("create", "pay"))
        return Committed({"done": True})

    tools = [system.tool("invoice_and_pay", commit=create_then_pay, lookup=None), system.tool("note_down")]
    async with turns_over(client, tmp_path, tools) as turns:
        started = await turns.start(
            reply(call("invoice_and_pay", identity="A"), call("note_down", identity="A2"))
        )
        view = await turns.settled(started)

    assert len({*keys, *(effect.key for effect in view.effects)}) == 4


async def test_attempt_that_was_held_up_past_its_time_to_send_sends_nothing(tmp_path: Path) -> None:
    """Paused between its claim and its call: others judge from send-by on whether it can still land."""
    system = FakeSystem()
    tool = system.tool("note_down")
    # The ledger's clock gives the claim; the attempt wakes an hour later.
    store = SqlStore(
        f"sqlite:///{tmp_path / 'ledger.db'}", clock=lambda: datetime.now(UTC) - timedelta(hours=1)
    )
    await store.open()
    new = NewTurn(
        principal=WHO, conversation="c", start_key="k", message="m", model="script", model_asked=None,
        policies={}, deadline_ms=None, nonce="n",
    )  # fmt: skip
    turn = (await store.start_turn(new)).ref
    step = StepRef(tenant=turn.tenant, turn=turn.turn, step=1)
    arguments = '{"identity":"A"}'
    asked = NewCall(call_id="1", tool="note_down", arguments=arguments, kind="effect", digest="d")
    await store.record_reply(
        step, NewReply(text="", finish="stop", input_tokens=0, output_tokens=0, calls=(asked,))
    )
    ref = CallRef(tenant=turn.tenant, turn=turn.turn, step=1, index=0)
    outcome = await ActivityEnvironment().run(CommitAttempts(store, Stragglers()).run, tool, ref)
    await store.close()

    assert system.calls == []
    assert outcome.effect is not None
    assert outcome.effect.state is State.FAILED
    assert "past its time to send" in (outcome.effect.note or "")


async def test_key_past_its_life_is_asked_about_instead_of_sent_again(client: Client, tmp_path: Path) -> None:
    system = FakeSystem(after=lambda phase, _: RuntimeError("lost") if phase == "commit" else None)
    # It lives just long enough for one request: a second could land after the vendor forgot the key.
    tool = system.tool("note_down", repeat=Keyed(timedelta(milliseconds=2501)))
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(reply(call("note_down", identity="A")), say("ok"))
        await turns.settled(started)
        states = await turns.states(started)

    assert states == {"note_down A": "committed"}
    assert [phase for phase, _, _ in system.calls] == ["commit", "lookup"]
