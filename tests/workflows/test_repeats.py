"""A model that asks again: in other words, under the same ids, or since it heard nothing."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, model_validator
from temporalio.client import Client

from tests.oracle import truth_of
from tests.stack import WHO, SandboxProcess, Turns, call, eventually, reply, say, turns_over
from tests.workflows.steps import THINKING, charge, charges, invoice, must_have_valid_history
from turnsaga.models import EffectView
from turnsaga.store import Started
from turnsaga.testing import FakeSystem
from turnsaga.tools import Limits, Once


async def asked(turns: Turns, started: Started) -> EffectView:
    async def there() -> EffectView | None:
        effects = (await turns.view(started)).effects
        return next((one for one in effects if one.held_for == "confirmation"), None)

    found: EffectView = await eventually(there, within=30, what="a question to the user")
    return found


async def text_of(turns: Turns, started: Started) -> str:
    return "".join(
        str(event.data["text"]) for event in await turns.events(started) if event.kind == "text_delta"
    )


def on_purpose(asked_for: dict[str, Any]) -> dict[str, Any]:
    return {**asked_for, "args": {**asked_for["args"], "repeat_on_purpose": True}}


async def test_charge_whose_answer_was_lost_is_charged_once_though_the_model_asks_again_and_insists(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    await sandbox.knobs("pay", drop_response=1)
    again: dict[str, Any] = {**charge(name), "id": "another_id"}
    started = await turns.start(
        reply({**charge(name), "id": "first_id"}),
        reply(again, **say("then {{results}} ")),
        reply(on_purpose(again), **say("again {{results}} ")),
        say("at last {{results}}"),
    )
    shown = await asked(turns, started)
    before = await charges(sandbox, name)
    await turns.turns.reject(WHO, shown.effect, version=shown.version, digest=shown.digest)
    view = await turns.settled(started)
    text = await text_of(turns, started)

    assert (before, await charges(sandbox, name)) == (1, 1)
    assert [one.state.value for one in view.effects] == ["committed", "released"]
    assert 'then {"charge":' in text
    assert "again (this repeats an earlier call of this turn" in text
    assert "rejected: not sent, the user said no" in text
    await turns.must_agree(await truth_of(sandbox), started)


async def test_repeat_of_what_is_unknown_is_not_sent_though_its_user_confirms_it(
    client: Client, tmp_path: Path
) -> None:
    """While the first may have been applied, no second one is: the wait for it ends, and it isn't sent."""
    system = FakeSystem(after=lambda phase, _: RuntimeError("lost") if phase == "commit" else None)
    limits = Limits(wait=timedelta(milliseconds=300), landing_window=timedelta(0))
    tool = system.tool(
        "note_once", commit=system.commit_once, repeat=Once(), lookup=None, limits=limits, reversible=False
    )
    once = call("note_once", identity="A")
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(
            reply(once),
            reply(once, **say("first {{results}} ")),
            reply(on_purpose(once), **say("again {{results}} ")),
            say("at last {{results}}"),
            policies={"note_once": "immediate!"},
        )
        shown = await asked(turns, started)
        await turns.turns.confirm(WHO, shown.effect, version=shown.version, digest=shown.digest)
        view = await turns.settled(started)
        text = await text_of(turns, started)

    assert [one.state.value for one in view.effects] == ["unknown", "released"]
    assert len(system.applied) == 1
    assert 'first {"error":"note A: outcome unknown: it may have been done and is being checked' in text
    assert 'again {"error":"(this repeats an earlier call of this turn' in text
    assert "waited 0:00:00.300000 for another effect (note A)" in str(view.effects[1].error)


async def test_amount_in_other_words_is_one_charge_in_a_turn_and_another_in_the_next(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    written = ("10", "10.0", '"10.00"', "1e1", '"1E+1"', "10.000")
    forms = [
        f'{{"customer":"cus_1","amount":{amount},"currency":"EUR","invoice":"{name}"}}' for amount in written
    ]
    forms.append(f'{{"invoice":"{name}","currency":"eur","amount":"10","customer":"cus_1"}}')
    calls = [{"tool": "charge_card", "raw_args": raw} for raw in forms]
    first = await turns.settled(
        await turns.start(reply(*calls[:4]), *(reply(one) for one in calls[4:]), say("ok"))
    )
    after_one_turn = await charges(sandbox, name)
    alias = {**charge(name)["args"], "sum": "10.00"}  # type: ignore[dict-item]
    second = await turns.settled(
        await turns.start(reply({"tool": "charge_card", "args": alias}, calls[2]), say("ok"))
    )

    assert len(first.effects) == 1
    assert after_one_turn == 1
    # A name that the tool doesn't declare is refused rather than guessed at.
    assert [one.state.value for one in second.effects] == ["committed"]
    assert second.effects[0].key != first.effects[0].key
    assert await charges(sandbox, name) == 2


async def test_call_ids_that_a_model_uses_twice_lose_no_call_and_double_none(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    names = [invoice() for _ in range(3)]
    one, two, three = ({**charge(name), "id": "x"} for name in names)
    conversation = f"ids-{names[0]}"
    started = await turns.start(
        reply(one, two), reply(three, one), say("told {{results}}"), conversation=conversation
    )
    view = await turns.settled(started)

    assert [await charges(sandbox, name) for name in names] == [1, 1, 1]
    assert [(effect.identity, effect.state.value) for effect in view.effects] == [
        (name, "committed") for name in names
    ]
    assert "this repeats an earlier call of this turn" in await text_of(turns, started)
    await must_have_valid_history(turns, conversation, turns_before=1, calls=4)


async def test_call_ids_that_a_model_uses_twice_are_told_apart_after_an_abort(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    names = [invoice(), invoice()]
    conversation = f"ids-{names[0]}"
    started = await turns.start(
        reply(*({**charge(name), "id": "x"} for name in names)), THINKING, conversation=conversation
    )
    for name in names:
        await eventually(lambda n=name: _charged(sandbox, n), what="the charge")
    await turns.turns.abort(WHO, started.ref.turn)
    view = await turns.settled(started)

    assert {effect.state.value for effect in view.effects} == {"compensated"}
    await must_have_valid_history(turns, conversation, turns_before=1, calls=2)
    await turns.must_agree(await truth_of(sandbox), started)


async def _charged(sandbox: SandboxProcess, name: str) -> bool:
    return await charges(sandbox, name) == 1


class Transfer(BaseModel):
    """Arguments with a limit that the tool's own code sets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: str
    amount: int = 5
    text: str = ""

    @model_validator(mode="after")
    def _at_most(self) -> "Transfer":
        object.__setattr__(self, "amount", min(self.amount, most[0]))
        return self


most = [100]


@pytest.mark.parametrize("arguments", [{"amount": 100}, {"amount": 170}], ids=["as written", "clamped"])
async def test_what_a_person_confirmed_is_sent_or_nothing_is(
    client: Client, tmp_path: Path, arguments: dict[str, int]
) -> None:
    """Shown are the final arguments, defaults and limits applied; read otherwise later, nothing is sent."""
    system = FakeSystem()
    tool = system.tool(
        "transfer", arguments=Transfer, says="transfer {amount} to {identity}", commits="confirmed"
    )
    most[0] = 100
    async with turns_over(client, tmp_path, [tool]) as turns:
        policies = {"transfer": "confirmed"}
        changed = await turns.start(
            reply(call("transfer", identity="A", **arguments)), say("told {{results}}"), policies=policies
        )
        defaulted = await turns.start(reply(call("transfer", identity="B")), say("ok"), policies=policies)
        shown, other = await asked(turns, changed), await asked(turns, defaulted)
        await turns.turns.confirm(WHO, other.effect, version=other.version, digest=other.digest)
        sent = await turns.settled(defaulted)
        most[0] = 50  # a deploy of another limit, between what was shown and the answer
        await turns.turns.confirm(WHO, shown.effect, version=shown.version, digest=shown.digest)
        view = await turns.settled(changed)
        text = await text_of(turns, changed)

    assert (shown.title, other.title) == ("transfer 100 to A", "transfer 5 to B")
    assert [one.state.value for one in sent.effects] == ["committed"]
    assert [one.state.value for one in view.effects] == ["failed"]
    assert str(view.effects[0].error).startswith("stale: not sent")
    assert "stale: not sent" in text
    assert [identity for _, identity in system.applied] == ["B"]
