"""Whole turns that leave something to a person, until the person's word has settled it."""

from datetime import timedelta
from pathlib import Path

from temporalio.client import Client

from tests.oracle import truth_of
from tests.stack import WHO, SandboxProcess, Turns, call, eventually, reply, turns_over
from tests.workflows.steps import THINKING, all_are, invoice
from turnsaga.errors import UndoRefused
from turnsaga.ledger import State, TurnState
from turnsaga.models import Principal
from turnsaga.recovery import RecoveryActivities
from turnsaga.store import Started
from turnsaga.testing import FakeSystem
from turnsaga.tools import Call, JsonObject, Limits, Once, Undone

GRACE = Principal(tenant=WHO.tenant, user="grace", role="operator")


async def waiting(turns: Turns, started: Started) -> list[str]:
    return [effect.effect for effect in await turns.turns.attention(GRACE) if effect.turn == started.ref.turn]


async def swept_until(turns: Turns, started: Started, state: State) -> None:
    sweeper = RecoveryActivities(turns.store, turns.client, task_queue=turns.task_queue, adopt=True)

    async def there() -> bool:
        await sweeper.sweep()
        return [effect.state for effect in (await turns.view(started)).effects] == [state]

    await eventually(there, within=30, what=f"a sweep after which it is {state}")


async def test_undo_that_fails_for_good_waits_for_a_person_and_is_resolved(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem()
    system.before = lambda phase, _: UndoRefused("the vault is closed") if phase == "undo" else None
    async with turns_over(client, tmp_path, [system.tool("note_down")]) as turns:
        started = await turns.start(reply(call("note_down", identity="A")), THINKING)
        await all_are(turns, started, ["committed"])
        await turns.turns.abort(WHO, started.ref.turn)
        await turns.settled(started)
        [effect] = await waiting(turns, started)
        resolved = await turns.turns.resolve(GRACE, effect, word="stands", note="the customer keeps it")
        left = await waiting(turns, started)
        view = await turns.view(started)
        outstanding = await turns.store.account_effects(WHO, outstanding=True)
        kinds = [event.kind for event in await turns.events(started)]
        await turns.must_agree(system.truth(), started)

    assert (resolved.state, resolved.no_undo_reason) == (State.STANDING, "the customer keeps it")
    assert left == []
    assert view.settlement is not None
    assert (view.settlement.compensation_failed, view.settlement.standing) == ((), (effect,))
    assert [shown.effect for shown in outstanding] == [effect], "its user is told until they have seen it"
    assert kinds[-4:] == ["tool_compensating", "tool_attention", "turn_settled", "tool_standing"]


async def test_mail_that_was_found_sent_after_its_turn_was_aborted_stands(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    name = invoice()
    await sandbox.knobs("mail", drop_response=1)
    started = await turns.start(
        reply(call("send_invoice_email", to="ada@example.com", invoice=name, amount="10.00")),
        THINKING,
        policies={"send_invoice_email": "immediate!"},
    )
    await turns.reaches(started, "unknown", "send_invoice_email")
    await turns.turns.abort(WHO, started.ref.turn)
    settled = await turns.settled(started)
    [effect] = await waiting(turns, started)
    resolved = await turns.turns.resolve(GRACE, effect, word="applied", note="it is in the outbox")
    await swept_until(turns, started, State.STANDING)
    kinds = [event.kind for event in await turns.events(started)]
    sent = [
        each
        for each in (await sandbox.truth())["calls"]
        if each["system"] == "mail" and each.get("identity") == name
    ]

    assert settled.state is TurnState.ABORTED
    assert resolved.state is State.COMMITTED
    assert kinds[kinds.index("turn_settled") :] == ["turn_settled", "tool_committed", "tool_standing"]
    assert len(sent) == 1
    assert await waiting(turns, started) == []
    await turns.must_agree(await truth_of(sandbox), started)


async def test_commit_that_was_found_applied_after_its_turn_was_aborted_is_undone(
    client: Client, tmp_path: Path
) -> None:
    """A person has no receipt to give: an undo goes by the effect's key, or fails."""
    system = FakeSystem(after=lambda phase, _: RuntimeError("lost") if phase == "commit" else None)

    async def undo(request: JsonObject, receipt: JsonObject, made: Call) -> Undone:
        if request["identity"] == "A":
            receipt = {"key": made.effect_key}
        return await system.undo(request, receipt, made)

    tool = system.tool(
        "note_once",
        compensate=undo,
        commit=system.commit_once,
        repeat=Once(),
        lookup=None,
        limits=Limits(landing_window=timedelta(0), undo_total=timedelta(seconds=20), undo_sends=2),
    )
    async with turns_over(client, tmp_path, [tool]) as turns:
        by_key, by_receipt = [
            await turns.start(reply(call("note_once", identity=name)), THINKING) for name in "AB"
        ]
        for started, ends in ((by_key, State.COMPENSATED), (by_receipt, State.COMPENSATION_FAILED)):
            await turns.reaches(started, "unknown", "note_once")
            await turns.turns.abort(WHO, started.ref.turn)
            await turns.settled(started)
            [effect] = await waiting(turns, started)
            await turns.turns.resolve(GRACE, effect, word="applied", note="it is there")
            await swept_until(turns, started, ends)
        [failed] = await waiting(turns, by_receipt)
        await turns.turns.resolve(GRACE, failed, word="stands", note="it may stay")
        kinds = [event.kind for event in await turns.events(by_key)]
        states = await turns.states(by_receipt)
        await turns.must_agree(system.truth(), by_key, by_receipt)

    assert states == {"note_once B": "standing"}
    assert kinds[kinds.index("turn_settled") :] == [
        "turn_settled",
        "tool_committed",
        "tool_compensating",
        "tool_compensated",
    ]
