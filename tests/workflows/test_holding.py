"""Held effects in whole turns: confirmed, at the turn's end, delayed, off; and turns beside each other."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from tests.oracle import truth_of
from tests.stack import SandboxProcess, Turns, call, eventually, reply, say
from tests.workflows.steps import THINKING, charge, charges, invoice, record_name
from turnsaga.errors import DecisionRefused, NotFound, PolicyLoosened, TurnInProgress
from turnsaga.ledger import TurnState
from turnsaga.models import EffectView, Principal
from turnsaga.store import Started

RESULTS = say("{{results}}")


def mail(name: str, **more: Any) -> dict[str, Any]:
    return call("send_invoice_email", to="ada@example.com", invoice=name, amount="10.00", **more)


async def held(turns: Turns, started: Started, tool: str, why: str) -> EffectView:
    async def there() -> EffectView | None:
        view = await turns.view(started)
        return next((one for one in view.effects if (one.tool, one.held_for) == (tool, why)), None)

    found: EffectView = await eventually(there, what=f"{tool} held for {why}")
    return found


async def mails(sandbox: SandboxProcess, name: str) -> int:
    found = await truth_of(sandbox)
    return sum(true.applied for true in found.effects if (true.system, true.identity) == ("mail", name))


async def text_of(turns: Turns, started: Started) -> str:
    return "".join(
        str(event.data["text"]) for event in await turns.events(started) if event.kind == "text_delta"
    )


async def test_mail_goes_out_once_its_user_has_confirmed_what_was_shown(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    started = await turns.start(reply(mail(name)), RESULTS)
    shown = await held(turns, started, "send_invoice_email", "confirmation")
    before = await mails(sandbox, name)
    answered = await turns.turns.confirm(turns.who, shown.effect, version=shown.version, digest=shown.digest)
    view = await turns.settled(started)

    assert (before, await mails(sandbox, name)) == (0, 1)
    assert answered.first
    assert answered.effect.state.value in {"committing", "committed"}
    assert (view.state, [one.state.value for one in view.effects]) == (TurnState.COMPLETED, ["committed"])
    assert "sent_to" in await text_of(turns, started)
    await turns.must_agree(await truth_of(sandbox), started)


async def test_rejected_mail_is_not_sent_and_the_model_is_told(turns: Turns, sandbox: SandboxProcess) -> None:
    name = invoice()
    started = await turns.start(reply(mail(name)), RESULTS)
    shown = await held(turns, started, "send_invoice_email", "confirmation")
    await turns.turns.reject(turns.who, shown.effect, version=shown.version, digest=shown.digest)
    view = await turns.settled(started)
    with pytest.raises(DecisionRefused, match="another answer came first"):
        await turns.turns.confirm(turns.who, shown.effect, version=shown.version, digest=shown.digest)

    assert [one.state.value for one in view.effects] == ["released"]
    assert await mails(sandbox, name) == 0
    assert "rejected" in await text_of(turns, started)


async def test_answers_reach_their_own_call_in_whatever_order_they_come(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    names = [invoice() for _ in range(3)]
    started = await turns.start(reply(*map(mail, names)), RESULTS)

    async def all_held() -> list[EffectView] | None:
        effects = (await turns.view(started)).effects
        asked = [one for one in effects if one.held_for == "confirmation"]
        return asked if len(asked) == 3 else None

    asked: list[EffectView] = await eventually(all_held, what="three questions")
    by_name = {one.identity: one for one in asked}
    for name, confirmed in ((names[2], True), (names[0], False), (names[1], True)):
        one = by_name[name]
        answer = turns.turns.confirm if confirmed else turns.turns.reject
        await answer(turns.who, one.effect, version=one.version, digest=one.digest)
    await turns.settled(started)

    assert [await mails(sandbox, name) for name in names] == [0, 1, 1]
    await turns.must_agree(await truth_of(sandbox), started)


async def test_answer_by_any_temporal_client_is_checked_like_the_api_s(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    started = await turns.start(reply(mail(name)), say("ok"))
    shown = await held(turns, started, "send_invoice_email", "confirmation")
    handle = turns.handle(started)
    right = {"effect": shown.effect, "version": shown.version, "digest": shown.digest, "by": "console"}
    for wrong in (
        {},
        None,
        "no",
        {"approved": "false"},
        {**right, "version": "1"},
        {**right, "digest": "x" * 101},
        {**right, "effect": "x" * 1_000_000},
        {**right, "version": 2},
        {**right, "digest": "other"},
        {**right, "effect": "eff_unknown"},
    ):
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("confirm", wrong)
    assert await mails(sandbox, name) == 0
    await handle.execute_update("confirm", right)
    await turns.settled(started)

    assert await mails(sandbox, name) == 1


async def test_question_expires_and_is_withdrawn(turns: Turns, sandbox: SandboxProcess) -> None:
    """An abort withdraws it at once; an answer afterwards does nothing."""
    name = invoice()
    started = await turns.start(reply(mail(name)), say("ok"))
    shown = await held(turns, started, "send_invoice_email", "confirmation")
    await turns.turns.abort(turns.who, started.ref.turn)
    at_once = (await turns.view(started)).effects[0].state.value
    with pytest.raises(DecisionRefused, match="stopped"):
        await turns.turns.confirm(turns.who, shown.effect, version=shown.version, digest=shown.digest)
    await turns.settled(started)

    assert at_once == "released"
    assert await mails(sandbox, name) == 0


async def test_nobody_else_can_answer(turns: Turns) -> None:
    started = await turns.start(reply(mail(invoice())), say("ok"))
    shown = await held(turns, started, "send_invoice_email", "confirmation")
    for who in (Principal(tenant="acme", user="eve"), Principal(tenant="other", user="ada")):
        with pytest.raises(NotFound):
            await turns.turns.confirm(who, shown.effect, version=shown.version, digest=shown.digest)
    await turns.turns.abort(turns.who, started.ref.turn)
    await turns.settled(started)


async def test_turn_end_commits_in_call_order_once_the_stream_is_whole(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    names = [invoice(), invoice()]
    started = await turns.start(
        reply(*map(charge, names)),
        say("{{results}}", "thinking", delay_ms=300),
        policies={"charge_card": "turn_end"},
    )
    await held(turns, started, "charge_card", "turn_end")
    await eventually(
        lambda: told(turns, started, "takes effect when this turn ends"), what="the model's news"
    )
    during = [await charges(sandbox, name) for name in names]
    view = await turns.settled(started)

    assert during == [0, 0]
    assert [await charges(sandbox, name) for name in names] == [1, 1]
    assert [one.order for one in view.effects] == [1, 2]
    kinds = [event.kind for event in await turns.events(started)]
    assert kinds.index("tool_committing") > max(n for n, kind in enumerate(kinds) if kind == "text_delta")
    await turns.must_agree(await truth_of(sandbox), started)


async def told(turns: Turns, started: Started, words: str) -> bool:
    page = await turns.store.event_page(turns.who, started.ref.turn, after=0)
    return words in "".join(str(event.data.get("text", "")) for event in page.events)


async def test_abort_during_the_stream_releases_what_its_end_would_commit(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    started = await turns.start(reply(charge(name)), THINKING, policies={"charge_card": "turn_end"})
    await held(turns, started, "charge_card", "turn_end")
    await turns.turns.abort(turns.who, started.ref.turn)
    view = await turns.settled(started)

    assert [one.state.value for one in view.effects] == ["released"]
    assert await charges(sandbox, name) == 0


async def test_abort_during_the_commits_of_the_end_undoes_those_that_are_done(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    names = [invoice() for _ in range(3)]
    await sandbox.knobs("pay", apply_after_ms=300, only={"op": "apply", "identity": names[1]})
    started = await turns.start(reply(*map(charge, names)), say("ok"), policies={"charge_card": "turn_end"})
    await turns.reaches(started, "committed", "charge_card")
    await turns.turns.abort(turns.who, started.ref.turn)
    view = await turns.settled(started)

    states = [one.state.value for one in view.effects]
    assert states[0] == "compensated"
    assert states[2] == "released"
    assert states[1] in {"compensated", "released"}
    await turns.must_agree(await truth_of(sandbox), started)


async def test_delay_is_the_time_to_change_ones_mind(turns: Turns, sandbox: SandboxProcess) -> None:
    name, stopped_name = invoice(), invoice()
    policies = {"charge_card": "immediate+700ms"}
    started = await turns.start(reply(charge(name)), say("ok"), policies=policies)
    stopped = await turns.start(reply(charge(stopped_name)), say("ok"), policies=policies)
    await held(turns, stopped, "charge_card", "delay")
    await turns.turns.abort(turns.who, stopped.ref.turn)
    view, other = await turns.settled(started), await turns.settled(stopped)

    assert [one.state.value for one in (*view.effects, *other.effects)] == ["committed", "released"]
    assert [await charges(sandbox, one) for one in (name, stopped_name)] == [1, 0]


async def test_tool_that_is_off_is_neither_offered_nor_run(turns: Turns, sandbox: SandboxProcess) -> None:
    name = invoice()
    started = await turns.start(reply(charge(name)), RESULTS, policies={"charge_card": "off"})
    view = await turns.settled(started)

    assert view.effects == ()
    assert "isn't available in this turn" in await text_of(turns, started)
    assert await charges(sandbox, name) == 0


async def test_policies_are_tightened_by_everyone_and_loosened_by_services(turns: Turns) -> None:
    tightened = await turns.start(
        reply(mail(invoice())), say("ok"), policies={"send_invoice_email": "off", "charge_card": "turn_end"},
        may_loosen=True,
    )  # fmt: skip
    await turns.settled(tightened)
    with pytest.raises(PolicyLoosened, match="confirmed"):
        await turns.turns.start(
            turns.who, "c", message="{}", start_key="k", policies={"send_invoice_email": "turn_end"},
            may_loosen=False,
        )  # fmt: skip


async def test_repeat_is_the_first_effect_and_one_on_purpose_asks_the_user(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    arguments = {"customer": "cus_1", "amount": "10.00", "currency": "EUR", "invoice": name}
    again = call("charge_card", **arguments)
    wanted = call("charge_card", **arguments, repeat_on_purpose=True)
    started = await turns.start(reply(again), reply(again), reply(wanted), RESULTS)
    shown = await held(turns, started, "charge_card", "confirmation")
    before = await charges(sandbox, name)
    await turns.turns.confirm(turns.who, shown.effect, version=shown.version, digest=shown.digest)
    view = await turns.settled(started)

    assert (before, await charges(sandbox, name)) == (1, 2)
    assert [one.state.value for one in view.effects] == ["committed", "committed"]
    assert len({one.key for one in view.effects}) == 2


async def test_parallel_updates_of_one_record_run_in_order_and_are_undone_to_before_both(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    record = record_name()
    made = await turns.start(
        reply(call("create_record", kind="ticket", id=record, fields={"a": 0, "b": 0})), say("ok")
    )
    await turns.settled(made)
    ran = [made]
    for policy in ("immediate", "turn_end"):
        started = await turns.start(
            reply(
                call("update_record", kind="ticket", id=record, fields={"a": 1}),
                call("update_record", kind="ticket", id=record, fields={"b": 2}),
            ),
            say("ok"),
            policies={"update_record": policy},
        )
        view = await turns.settled(started)
        assert [one.state.value for one in view.effects] == ["committed", "committed"], policy
        assert await fields_of(sandbox, record) == {"a": 1, "b": 2}
        back = await turns.start(
            reply(
                call("update_record", kind="ticket", id=record, fields={"a": 5}),
                call("update_record", kind="ticket", id=record, fields={"b": 6}),
            ),
            THINKING,
            policies={"update_record": "immediate"},
        )
        await eventually(lambda b=back: _both(turns, b), what="both updates")
        await turns.turns.abort(turns.who, back.ref.turn)
        await turns.settled(back)
        assert await fields_of(sandbox, record) == {"a": 1, "b": 2}
        ran += [started, back]
        await turns.must_agree(await truth_of(sandbox), *ran)


async def test_second_question_about_one_record_is_asked_on_what_the_first_made_of_it(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    """Both asked at once, the second would be about a version that the first one's commit ends."""
    record = record_name()
    await turns.settled(
        await turns.start(reply(call("create_record", kind="ticket", id=record, fields={"a": 0})), say("ok"))
    )
    started = await turns.start(
        reply(
            call("update_record", kind="ticket", id=record, fields={"a": 1}),
            call("update_record", kind="ticket", id=record, fields={"b": 2}),
        ),
        say("ok"),
        policies={"update_record": "confirmed"},
    )
    for _ in range(2):
        shown = await held(turns, started, "update_record", "confirmation")
        await turns.turns.confirm(turns.who, shown.effect, version=shown.version, digest=shown.digest)
    view = await turns.settled(started)

    assert [one.state.value for one in view.effects] == ["committed", "committed"]
    assert await fields_of(sandbox, record) == {"a": 1, "b": 2}


async def _both(turns: Turns, started: Started) -> bool:
    states = [one.state.value for one in (await turns.view(started)).effects]
    return states == ["committed", "committed"]


async def fields_of(sandbox: SandboxProcess, record: str) -> dict[str, Any]:
    token = {"Authorization": f"Bearer {sandbox.vendor.crm_token.get_secret_value()}"}
    answer = await sandbox.http.get(f"/crm/sobjects/ticket/{record}", headers=token)
    found: dict[str, Any] = answer.json()["fields"]
    return found


async def test_held_update_of_a_record_that_somebody_changed_is_refused_as_stale(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    record = record_name()
    await turns.settled(
        await turns.start(reply(call("create_record", kind="ticket", id=record, fields={"a": 0})), say("ok"))
    )
    started = await turns.start(
        reply(call("update_record", kind="ticket", id=record, fields={"a": 1})),
        say("thinking", "thinking", delay_ms=500),
        policies={"update_record": "turn_end"},
    )
    await held(turns, started, "update_record", "turn_end")
    answer = await sandbox.http.post(
        "/_act", json={"system": "crm", "op": "edit", "identity": f"ticket/{record}", "fields": {"a": 9}}
    )
    assert answer.is_success, answer.text
    view = await turns.settled(started)

    assert [one.state.value for one in view.effects] == ["failed"]
    assert (view.effects[0].error or "").startswith("stale")
    calls = (await sandbox.truth())["calls"]
    assert [one["op"] for one in calls if one["key"] == view.effects[0].key] == [], "it wasn't even sent"
    assert await fields_of(sandbox, record) == {"a": 9}


async def test_turns_of_one_conversation_wait_for_each_other_or_take_each_other_s_place(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    first_name, second_name = invoice(), invoice()
    conversation = f"queue-{first_name}"
    first = await turns.start(reply(charge(first_name)), THINKING, conversation=conversation)
    await turns.reaches(first, "committed", "charge_card")
    with pytest.raises(TurnInProgress):
        await turns.start(say("no"), conversation=conversation)
    second = await turns.start(
        reply(charge(second_name)), say("ok"), conversation=conversation, on_busy="queue"
    )
    third = await turns.start(say("third"), conversation=conversation, on_busy="queue")
    assert (second.state, third.state) == (TurnState.QUEUED, TurnState.QUEUED)
    await asyncio.sleep(0.3)
    assert (await turns.view(second)).state is TurnState.QUEUED
    await turns.turns.abort(turns.who, third.ref.turn)
    gone = await turns.settled(third)
    fourth = await turns.start(say("fourth"), conversation=conversation, on_busy="abort")
    one, two, four = [await turns.settled(each) for each in (first, second, fourth)]

    assert [one.state, two.state, gone.state, four.state] == [
        TurnState.ABORTED,
        TurnState.COMPLETED,
        TurnState.ABORTED,
        TurnState.COMPLETED,
    ]
    assert one.reason == "the user's next message took its place"
    assert await charges(sandbox, second_name) == 1
    await turns.must_agree(await truth_of(sandbox), first, second, fourth)


async def test_key_of_a_held_effect_outlives_a_change_of_its_rule(
    turns: Turns, sandbox: SandboxProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3.1, A3.6: it is stored before anything is sent, and read again, never made again."""
    name = invoice()
    started = await turns.start(
        reply(charge(name)), say(*["thinking "] * 10, delay_ms=50), policies={"charge_card": "turn_end"}
    )
    before = await held(turns, started, "charge_card", "turn_end")

    def newer(**_: object) -> str:
        return "ts2_other"

    monkeypatch.setattr("turnsaga.tool_activities._drafts.effect_key", newer)
    view = await turns.settled(started)
    [true] = [each for each in (await sandbox.truth())["effects"] if each["identity"] == name]

    assert [effect.key for effect in view.effects] == [before.key]
    assert before.key.startswith("ts1_")
    assert (true["keys"], true["applied"]) == ([before.key], 1)
