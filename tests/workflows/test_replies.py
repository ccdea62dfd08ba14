"""What becomes of replies that are cut, wrong or late, and what the model is told."""

import itertools
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.stack import WHO, SandboxProcess, Turns, call, reply, say, turns_over
from tests.workflows.steps import THINKING, charge, charges, invoice
from turnsaga.ledger import TurnState
from turnsaga.models import StepRef
from turnsaga.store import NewReply, StoredReply, Writer
from turnsaga.testing import FakeSystem, Note

_ids = itertools.count(1)


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

        async def dies_once(ref: StepRef, reply: NewReply, *, by: Writer | None = None) -> StoredReply | None:
            kept = await stored(ref, reply, by=by)
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


async def test_stored_call_that_a_newer_tool_can_t_read_fails_alone(client: Client, tmp_path: Path) -> None:
    """The reply was stored by an attempt that died; the deploy after it wants one argument more."""
    system = FakeSystem()
    strict = system.tool("note_strict")
    async with turns_over(client, tmp_path, [strict, system.tool("note_down")]) as turns:
        stored = turns.store.record_reply
        deaths = itertools.count(1)

        async def dies_once(ref: StepRef, reply: NewReply, *, by: Writer | None = None) -> StoredReply | None:
            kept = await stored(ref, reply, by=by)
            if next(deaths) == 1:
                # What a deploy does while nobody works on the turn.
                object.__setattr__(strict, "arguments", Stricter)
                raise RuntimeError("the worker died here")
            return kept

        turns.store.record_reply = dies_once  # type: ignore[method-assign]
        started = await turns.start(
            reply(call("note_strict", identity="A"), call("note_down", identity="B")), say("{{results}}")
        )
        view = await turns.settled(started)
        events = await turns.events(started)
        await turns.must_agree(system.truth(), started)
    text = "".join(event.data["text"] for event in events if event.kind == "text_delta")

    assert view.state is TurnState.COMPLETED
    assert [(effect.tool, effect.state.value) for effect in view.effects] == [("note_down", "committed")]
    assert "reason: Field required" in text


class Stricter(Note):
    """What the newer tool takes."""

    reason: str
