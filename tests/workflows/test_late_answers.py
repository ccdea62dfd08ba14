"""Answers that come after a call's time, or get lost behind it; and what is sent again, to the byte."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.deployment import deployment_tools
from activities.tools.mail import Mail
from activities.tools.payments import Payments
from tests.oracle import truth_of
from tests.stack import SandboxProcess, Turns, call, eventually, reply, say, turns_over
from tests.workflows.recorded_wire import recorded_wire
from tests.workflows.steps import charge, charges, invoice, record_name
from turnsaga.ledger import State, TurnState
from turnsaga.models import StepRef
from turnsaga.recovery import RecoveryActivities
from turnsaga.store import Started
from turnsaga.testing import FakeSystem, Note
from turnsaga.tools import Call, Committed, EffectTool, JsonObject, Limits, Prepared

_SHORT = Limits(
    call=timedelta(seconds=1),
    send_by=timedelta(seconds=2),
    landing_window=timedelta(seconds=2),
    resolve=timedelta(seconds=20),
)


@pytest.fixture
async def payments(sandbox: SandboxProcess) -> AsyncIterator[Payments]:
    await sandbox.clear()
    vendor = Payments(sandbox.vendor.pay_url, "sk_test_sandbox")
    yield vendor
    await vendor.close()
    await sandbox.clear()


async def _kinds(turns: Turns, started: Started) -> list[str]:
    return [event.kind for event in await turns.events(started)]


async def _told(turns: Turns, started: Started) -> str:
    events = await turns.events(started)
    return "".join(event.data["text"] for event in events if event.kind == "text_delta")


async def _sent(sandbox: SandboxProcess, name: str) -> list[dict[str, Any]]:
    calls = (await sandbox.truth())["calls"]
    return [each for each in calls if (each["identity"], each["op"]) == (name, "apply")]


async def test_charge_that_takes_longer_than_every_call_is_made_once_and_found(
    client: Client, tmp_path: Path, sandbox: SandboxProcess, payments: Payments
) -> None:
    """A8.1: each call gives up after 1 s, PAY answers after 3 s, and three are sent."""
    name = invoice()
    await sandbox.knobs("pay", latency_ms=3000, only={"op": "apply", "identity": name})
    tool = replace(payments.tool(), limits=replace(_SHORT, sends=3))
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(reply(charge(name)), say("{{results}}"))
        view = await turns.settled(started)
        kinds = await _kinds(turns, started)
        told = await _told(turns, started)
        await turns.must_agree(await truth_of(sandbox), started)
    sent = await _sent(sandbox, name)

    assert view.effects[0].state is State.COMMITTED
    assert len(sent) == 3
    assert {each["key"] for each in sent} == {view.effects[0].key}
    assert await charges(sandbox, name) == 1
    assert "tool_failed" not in kinds
    assert "fail" not in told


async def test_effect_that_lands_after_its_turn_was_told_not_known_and_is_told_once_when_it_shows(
    client: Client, tmp_path: Path, sandbox: SandboxProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A8.2: the call gives up after 1 s and the effect lands after 4 s; the turn doesn't wait for it."""
    monkeypatch.setattr("turnsaga.recovery._GRACE", timedelta(0))
    record = record_name()
    await sandbox.clear()
    aimed = {"op": "apply", "identity": f"ticket/{record}"}
    await sandbox.knobs("crm", apply_after_ms=4000, latency_ms=4000, only=aimed)
    limits = replace(_SHORT, landing_window=timedelta(seconds=30), resolve=timedelta(milliseconds=500))
    async with deployment_tools(sandbox.vendor) as all_tools:
        tool = replace(all_tools.effect("create_record"), limits=limits)
        async with turns_over(client, tmp_path, [tool]) as turns:
            started = await turns.start(
                reply(call("create_record", kind="ticket", id=record)), say("{{results}}")
            )
            view = await turns.settled(started)
            applied_then = (await truth_of(sandbox)).effects
            told, before = await _told(turns, started), await _kinds(turns, started)
            sweeper = RecoveryActivities(turns.store, client, task_queue=turns.task_queue, adopt=True)

            async def found() -> bool:
                await sweeper.sweep()
                return list((await turns.states(started)).values()) == ["committed"]

            await eventually(found, what="the record in the ledger")
            after = (await _kinds(turns, started))[len(before) :]
            # What a model is given of this turn from now on.
            step = StepRef(tenant=started.ref.tenant, turn=started.ref.turn, step=2)
            now_told = (await turns.store.step_context(step)).history[-1].steps[0].calls[0]
            await turns.must_agree(await truth_of(sandbox), started)
    await sandbox.clear()

    assert view.state is TurnState.COMPLETED
    assert view.effects[0].state is State.UNKNOWN
    assert all(true.identity != f"ticket/{record}" for true in applied_then)
    assert "outcome unknown: it may have been done and is being checked; do not repeat it" in told
    assert "fail" not in told
    assert not {"tool_failed", "tool_committed"} & set(before)
    assert after == ["tool_committed"]
    assert (now_told.is_error, record in now_told.result) == (False, True)


async def test_key_that_is_in_use_is_asked_with_again_until_its_answer_is_there(
    client: Client, tmp_path: Path, sandbox: SandboxProcess, payments: Payments
) -> None:
    """A3.4: the first call gives up after 1 s of 6, and every other is answered 409 meanwhile."""
    name = invoice()
    aimed = {"op": "apply", "identity": name}
    await sandbox.knobs("pay", latency_ms=6000, conflict_while_running=True, only=aimed)
    # Two may be sent: that PAY is still at it doesn't use up what is left.
    tool = replace(payments.tool(), limits=replace(_SHORT, sends=2), lookup=None)
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(reply(charge(name)), say("{{results}}"))

        async def refused() -> bool:
            return [each["status"] for each in await _sent(sandbox, name)].count(409) >= 2

        await eventually(refused, what="two answers that say that it is in use")
        # The next answers are at once; the first goes on to its own end all the same.
        await sandbox.knobs("pay", conflict_while_running=True, only=aimed)
        view = await turns.settled(started)
        kinds = await _kinds(turns, started)
        await turns.must_agree(await truth_of(sandbox), started)
    sent = await _sent(sandbox, name)

    assert view.effects[0].state is State.COMMITTED
    assert (sent[-1]["status"], {each["key"] for each in sent}) == (200, {view.effects[0].key})
    assert await charges(sandbox, name) == 1
    assert "tool_failed" not in kinds


async def test_charge_is_sent_again_byte_for_byte(
    client: Client, tmp_path: Path, sandbox: SandboxProcess
) -> None:
    """A3.5: on the wire itself, three times."""
    name = invoice()
    await sandbox.clear()
    await sandbox.knobs("pay", drop_response=2, only={"op": "apply", "identity": name})
    async with recorded_wire(sandbox.vendor.pay_url) as (wire, url):
        vendor = Payments(f"{url}/pay", "sk_test_sandbox")
        async with turns_over(client, tmp_path, [vendor.tool()]) as turns:
            started = await turns.start(reply(charge(name)), say("ok"))
            view = await turns.settled(started)
        await vendor.close()
    bodies = [request.body for request in wire.sent]

    assert view.effects[0].state is State.COMMITTED
    assert len(bodies) == 3
    assert name.encode() in bodies[0]
    assert len(set(bodies)) == 1
    assert {request.key for request in wire.sent} == {view.effects[0].key}
    assert await charges(sandbox, name) == 1


async def test_request_that_would_be_written_otherwise_now_is_sent_as_it_was_stored(
    client: Client, tmp_path: Path
) -> None:
    """A3.5: ``prepare`` notes the time; no attempt but the first asks it."""
    lost, prepared, sent = itertools.count(1), itertools.count(1), list[JsonObject]()
    system = FakeSystem(
        after=lambda phase, _: RuntimeError("lost") if phase == "commit" and next(lost) < 3 else None
    )

    async def prepare(arguments: Note, told: Call) -> Prepared:
        return Prepared({"identity": arguments.identity, "written": next(prepared), "key": told.key})

    async def commit(request: JsonObject, told: Call) -> Committed:
        sent.append(request)
        return await system.commit(request, told)

    tool = system.tool("note_down", prepare=prepare, commit=commit)
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(reply(call("note_down", identity="A")), say("ok"))
        view = await turns.settled(started)
        await turns.must_agree(system.truth(), started)

    assert sent == [{"identity": "A", "written": 1, "key": view.effects[0].key}] * 3


async def test_mail_whose_tool_fails_after_it_was_sent_is_sent_once(
    client: Client, tmp_path: Path, sandbox: SandboxProcess
) -> None:
    """A2.3: one commit sends the mail and then counts it somewhere, and the counting fails."""
    name = invoice()
    mail = Mail(sandbox.vendor.smtp_host, sandbox.vendor.smtp_port, "billing@example.com")

    async def send_and_count(request: JsonObject, told: Call) -> Committed:
        await mail.send(request, told)
        raise ConnectionError("the analytics are down")

    tool = replace(mail.tool(), commit=send_and_count)
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(
            reply(call("send_invoice_email", to="ada@example.com", invoice=name, amount="10.00")),
            say("{{results}}"),
            policies={"send_invoice_email": "immediate!"},
        )
        view = await turns.settled(started)
        told = await _told(turns, started)
    truth = await truth_of(sandbox)

    assert view.effects[0].state is State.UNKNOWN
    assert [true.applied for true in truth.effects if (true.system, true.identity) == ("mail", name)] == [1]
    assert "outcome unknown" in told
    assert "fail" not in told.replace("ConnectionError", "")


async def test_tool_that_declares_nothing_about_repeats_is_sent_once(client: Client, tmp_path: Path) -> None:
    """A2.4, A2.5: silence about retries means one send, and never "without a limit"."""
    system = FakeSystem(after=lambda phase, _: RuntimeError("lost") if phase == "commit" else None)
    tool = EffectTool(
        name="note_down",
        description="Note something down.",
        arguments=Note,
        system=system.name,
        says="note {identity}",
        commit=system.commit_once,
        irreversible_because="it stays",
        identity=lambda arguments: arguments.identity,
    )
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(
            reply(call("note_down", identity="A")), say("ok"), policies={"note_down": "immediate!"}
        )
        view = await turns.settled(started)

    assert view.effects[0].state is State.UNKNOWN
    assert view.effects[0].needs_attention
    assert [phase for phase, _, _ in system.calls] == ["commit"]
