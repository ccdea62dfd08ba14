"""What becomes of calls that fail, get lost, repeat, or can't be undone."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from tests.stack import WHO, SandboxProcess, Turns, call, eventually, reply, say, turns_over
from turnsaga.errors import ChangedSince, NotApplied, UndoRefused
from turnsaga.keys import sub_key
from turnsaga.ledger import State, TurnState
from turnsaga.models import CallRef, StepRef
from turnsaga.store import NewCall, NewReply, NewTurn, SqlStore, Started
from turnsaga.testing import FakeSystem, Truth
from turnsaga.tool_activities._commits import CommitAttempts
from turnsaga.tools import Call, Committed, JsonObject, Keyed, Limits, Once, Undone

_ids = itertools.count(1)
THINKING = say(*["thinking "] * 400, delay_ms=50)


def charge(invoice: str, amount: str = "10.00") -> dict[str, object]:
    return call("charge_card", customer="cus_1", amount=amount, currency="EUR", invoice=invoice)


def invoice() -> str:
    return f"INV-O{next(_ids)}"


async def truth_of(sandbox: SandboxProcess) -> Truth:
    return Truth.model_validate(await sandbox.truth())


async def charges(sandbox: SandboxProcess, name: str) -> int:
    found = await truth_of(sandbox)
    return sum(true.applied for true in found.effects if true.identity == name and true.system == "pay")


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
    name, record = invoice(), f"R{next(_ids)}"
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
    name, record = invoice(), f"R{next(_ids)}"
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
        await _all(turns, started, ["committed"] * 3)
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
        await _all(turns, started, ["committed"] * 2)
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
        await _all(turns, started, ["committed"] * 3)
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
        await _all(turns, started, ["committed"] * 2)
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started)

    assert [effect.state for effect in view.effects] == [State.COMPENSATION_FAILED] * 2
    assert [effect.error for effect in view.effects] == [
        "its undo returned no evidence that it was undone",
        "its undo was answered, and reading back shows it still there",
    ]


async def test_what_somebody_changed_since_stands_and_says_so(turns: Turns, sandbox: SandboxProcess) -> None:
    record = f"R{next(_ids)}"
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
    record, name = f"R{next(_ids)}", invoice()
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


async def test_unkeyed_undo_without_an_answer_is_never_sent_twice(client: Client, tmp_path: Path) -> None:
    system = FakeSystem(after=lambda phase, _: RuntimeError("lost") if phase == "undo" else None)
    tool = system.tool("note_down", undo_repeat=Once())
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(reply(call("note_down", identity="A")), THINKING)
        await _all(turns, started, ["committed"])
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
        await _all(turns, started, ["committed"])
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
        await _all(turns, started, ["committed"] * 2)
        await turns.turns.abort(WHO, started.ref.turn)
        await turns.settled(started)
        states = await turns.states(started)

    assert states == {"note_down A": "compensated", "note_over B": "standing"}


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


GOOD = {"customer": "cus_1", "amount": "10.00", "currency": "EUR", "invoice": "X"}


@pytest.mark.parametrize(
    ("arguments", "finish", "told"),
    [
        ({"raw_args": '{"customer":"cus_1","amount":"10.00","curr'}, "length", "length limit"),
        ({"raw_args": '{"customer":"cus_1","amount":"10.00","curr'}, "tool_calls", "cut off"),
        ({"args": GOOD}, "length", "length limit"),
        ({"raw_args": "[1, 2]"}, "tool_calls", "not a JSON object"),
        ({"raw_args": "not json"}, "tool_calls", "not JSON"),
        ({"args": {**GOOD, "amount": "-1"}}, "tool_calls", "amount"),
        ({"args": {**GOOD, "amount": "1.001"}}, "tool_calls", "2 decimals"),
        ({"args": {"amount": "1", "currency": "EUR", "invoice": "X"}}, "tool_calls", "customer"),
        ({"args": {**GOOD, "tip": 5}}, "tool_calls", "tip"),
    ],
)  # fmt: skip
async def test_arguments_that_are_cut_or_wrong_run_nothing_and_are_told(
    turns: Turns, arguments: dict[str, object], finish: str, told: str
) -> None:
    started = await turns.start(
        {"calls": [{"tool": "charge_card", **arguments}], "finish": finish}, say("{{results}}")
    )
    view = await turns.settled(started)
    text = "".join(event.data["text"] for event in await turns.events(started) if event.kind == "text_delta")

    assert view.state is TurnState.COMPLETED
    assert view.effects == ()
    assert told in text
    assert "not run" in text


async def test_unknown_tool_beside_a_charge_gets_an_error_and_the_turn_goes_on(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    started = await turns.start(reply(call("transfer_gold", to="me"), charge(name)), say("{{results}}"))
    view = await turns.settled(started)
    text = "".join(event.data["text"] for event in await turns.events(started) if event.kind == "text_delta")

    assert view.state is TurnState.COMPLETED
    assert "there is no tool 'transfer_gold'" in text
    assert await charges(sandbox, name) == 1


async def test_irreversible_tool_that_nobody_asked_for_by_name_isn_t_sent(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    started = await turns.start(
        reply(call("send_invoice_email", to="ada@example.com", invoice=name, amount="10.00")),
        say("{{results}}"),
    )
    view = await turns.settled(started)
    text = "".join(event.data["text"] for event in await turns.events(started) if event.kind == "text_delta")

    assert view.effects == ()
    assert "confirmation" in text
    assert name not in {true.identity for true in (await truth_of(sandbox)).effects}


async def test_model_that_fails_first_is_asked_again_and_runs_its_calls_once(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    started = await turns.start(
        reply(charge(name)), {"text": ["Charged."], "error": {"status": 500, "times": 3}}
    )
    view = await turns.settled(started)
    kinds = [event.kind for event in await turns.events(started)]

    assert view.state is TurnState.COMPLETED
    assert kinds.count("step_restarted") == 3
    assert await charges(sandbox, name) == 1


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


async def test_script_that_is_none_fails_the_turn_with_what_is_wrong(turns: Turns) -> None:
    started = await turns.turns.start(
        WHO,
        f"odd-{next(_ids)}",
        message='{"script":[{"calls":[{"args":{}}]}]}',
        start_key="k",
        model="script",
    )
    view = await turns.settled(started)

    assert view.state is TurnState.FAILED
    assert "script.0.calls.0.tool" in (view.reason or "")


async def test_next_turn_is_told_what_stands_until_it_is_acknowledged(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    del sandbox
    name = invoice()
    started = await turns.start(
        reply(call("send_invoice_email", to="ada@example.com", invoice=name, amount="10.00")),
        THINKING,
        policies={"send_invoice_email": "immediate!"},
    )
    mail = await turns.reaches(started, "committed", "send_invoice_email")
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)

    async def told() -> str:
        following = await turns.start(say("{{context}}"))
        await turns.settled(following)
        return "".join(e.data["text"] for e in await turns.events(following) if e.kind == "text_delta")

    before = await told()
    await turns.store.acknowledge(WHO, mail.effect)
    after = await told()

    assert (
        f"mail {name} over 10.00 to ada@example.com: was done in a turn that was stopped, and stands"
        in before
    )
    assert name not in after


async def test_stored_reply_is_not_asked_for_again_after_its_attempt_died(
    client: Client, tmp_path: Path
) -> None:
    """Between storing a reply and returning it the attempt dies; another reply could name other calls."""
    system = FakeSystem()
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        stored = turns.store.record_reply
        deaths = itertools.count(1)

        async def dies_once(ref: StepRef, reply: NewReply) -> bool:
            kept = await stored(ref, reply)
            if next(deaths) == 1:
                raise RuntimeError("the worker died here")
            return kept

        turns.store.record_reply = dies_once  # type: ignore[method-assign]
        started = await turns.start(reply(call("note_down", identity="A")), say("ok"))
        view = await turns.settled(started)
        kinds = [event.kind for event in await turns.events(started)]

    assert view.state is TurnState.COMPLETED
    assert "step_restarted" not in kinds
    assert len(system.applied) == 1


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
    outcome = await ActivityEnvironment().run(CommitAttempts(store).run, tool, ref)
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


async def _all(turns: Turns, started: Started, states: list[str]) -> None:
    async def there() -> bool:
        return [effect.state.value for effect in (await turns.view(started)).effects] == states

    await eventually(there, what=f"states {states}")
