"""Turns that cross on the same records, and in the same conversation.

TURNSAGA_CAMPAIGN sets how often: a tenth of it, each time with another seed.
"""

import asyncio
import json
import logging
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.oracle import truth_of
from tests.stack import SandboxProcess, Turns, call, reply, say
from tests.workflows.steps import THINKING, charge, charges, invoice, must_have_valid_history, record_name
from turnsaga.errors import TurnInProgress
from turnsaga.ledger import TurnState
from turnsaga.models import EffectView, TurnView
from turnsaga.store import Started

_log = logging.getLogger(__name__)
TURNS, RECORDS = 16, 4
# The last are new ones each time; a failure names its own.
FIXED = (1, 2)
NEW = max(1, int(os.environ.get("TURNSAGA_CAMPAIGN", "30")) // 10 - len(FIXED))
SEEDS = (*FIXED, *(random.SystemRandom().randrange(3, 1_000_000) for _ in range(NEW)))
CIRCLE = "not sent: this turn and another one wait for each other"


@dataclass(frozen=True)
class Plan:
    """One turn: it writes its own field, and its number as the owner, into two records."""

    number: int
    records: tuple[str, str]
    policy: str
    together: bool
    abort_after: float | None

    @property
    def script(self) -> list[dict[str, Any]]:
        fields = {f"turn-{self.number}": "after", "owner": self.number}
        calls = [call("update_record", kind="ticket", id=name, fields=fields) for name in self.records]
        replies = [reply(*calls)] if self.together else [reply(one) for one in calls]
        return [*replies, say("thinking ", "thinking ", "done", delay_ms=50)]


def planned(chance: random.Random, records: Sequence[str]) -> list[Plan]:
    plans: list[Plan] = []
    for number in range(TURNS):
        first, second = chance.sample(records, 2)
        policy, together = chance.choice(["immediate", "turn_end"]), chance.random() < 0.5
        abort_after = chance.uniform(0, 4) if chance.random() < 0.5 else None
        plans.append(Plan(number, (first, second), policy, together, abort_after))
    return plans


async def versions(sandbox: SandboxProcess, record: str) -> list[dict[str, Any]]:
    token = {"Authorization": f"Bearer {sandbox.vendor.crm_token.get_secret_value()}"}
    found: list[dict[str, Any]] = (
        await sandbox.http.get(f"/crm/sobjects/ticket/{record}/versions", headers=token)
    ).json()
    return found


async def create(turns: Turns, record: str, fields: Mapping[str, object]) -> Started:
    made = await turns.start(reply(call("create_record", kind="ticket", id=record, fields=fields)), say("ok"))
    view = await turns.settled(made)
    assert [effect.state.value for effect in view.effects] == ["committed"]
    return made


async def run(turns: Turns, plan: Plan) -> Started:
    started = await turns.start(*plan.script, policies={"update_record": plan.policy})
    if plan.abort_after is not None:
        await asyncio.sleep(plan.abort_after)
        await turns.turns.abort(turns.who, started.ref.turn)
    return started


@pytest.mark.campaign
@pytest.mark.parametrize("seed", SEEDS, ids=[*map(str, FIXED), *(f"new-{n}" for n in range(NEW))])
async def test_turns_that_cross_on_shared_records_lose_nothing_and_leave_nothing_between(
    turns: Turns, sandbox: SandboxProcess, seed: int
) -> None:
    # A new seed isn't in the test's name, which has to be the same in every process that collects it.
    logging.getLogger(__name__).warning("seed %d", seed)
    chance = random.Random(seed)
    records = [record_name() for _ in range(RECORDS)]
    before = {**{f"turn-{n}": "before" for n in range(TURNS)}, "owner": "nobody"}
    made = [await create(turns, record, before) for record in records]
    await sandbox.knobs("crm", latency_ms=40)
    plans = planned(chance, records)
    begun = asyncio.get_running_loop().time()
    started = await asyncio.gather(*(run(turns, plan) for plan in plans))
    views = [await turns.settled(one, within=60) for one in started]
    took = asyncio.get_running_loop().time() - begun
    await sandbox.clear()
    effects = [effect for view in views for effect in view.effects]
    states = sorted(effect.state.value for effect in effects)
    told = f"seed {seed}, {took:.1f} s, {[(state, states.count(state)) for state in sorted(set(states))]}"
    _log.info(told)

    judge_ends(views, plans, told)
    for record in records:
        mine = {effect.key: effect for effect in effects if effect.identity == f"ticket/{record}"}
        judge_record(await versions(sandbox, record), mine, before, told)
    await turns.must_agree(await truth_of(sandbox), *made, *started)
    assert "committed" in states, f"nothing was written: {told}"


def judge_ends(views: Sequence[TurnView], plans: Sequence[Plan], told: str) -> None:
    """Each turn ends as it may; nobody waited for the end of a bound, and nothing is left to a person."""
    for view, plan in zip(views, plans, strict=True):
        why = f"{told}, {plan}: {view}"
        allowed = (
            {"compensated", "released", "failed"}
            if view.state is TurnState.ABORTED
            else {"committed", "released", "failed"}
        )
        assert view.state in {TurnState.COMPLETED, TurnState.ABORTED}, why
        assert plan.abort_after is not None or view.state is TurnState.COMPLETED, why
        for effect in view.effects:
            assert effect.state.value in allowed, why
            if effect.state.value == "failed":
                assert str(effect.error).startswith("stale: "), why
            if effect.state.value == "released" and view.state is TurnState.COMPLETED:
                assert str(effect.error).startswith(CIRCLE), why


def judge_record(
    log: Sequence[Mapping[str, Any]],
    mine: Mapping[str, EffectView],
    before: Mapping[str, object],
    told: str,
) -> None:
    """What stands is in the record, what was undone isn't, and no turn wrote between a write and its undo."""
    expected, undoing = dict(before), None
    for entry in log[1:]:
        key, op = str(entry["key"]), entry["op"]
        if op == "revert":
            assert undoing is not None, f"{told}: an undo of nothing in {log}"
            undoing = None
            continue
        assert (op, key in mine) == ("update", True), f"{told}: whose is {entry}?"
        assert undoing is None, f"{told}: a write between another turn's write and its undo in {log}"
        if mine[key].state.value == "committed":
            number = entry["fields"]["owner"]
            expected |= {f"turn-{number}": "after", "owner": number}
        else:
            assert mine[key].state.value == "compensated", f"{told}: {mine[key]}"
            undoing = key
    assert undoing is None, f"{told}: not undone: {log}"
    applied = {str(entry["key"]) for entry in log if entry["op"] == "update"}
    assert {key for key, effect in mine.items() if effect.order is not None} == applied, told
    assert log[-1]["fields"] == expected, told


async def test_undo_never_takes_back_what_somebody_else_wrote_on_purpose_though_it_is_the_same_value(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    record = record_name()
    made = await create(turns, record, {"status": "silver"})
    started = await turns.start(
        reply(call("update_record", kind="ticket", id=record, fields={"status": "gold"})), THINKING
    )
    await turns.reaches(started, "committed", "update_record")
    act = {"system": "crm", "op": "edit", "identity": f"ticket/{record}", "fields": {"status": "gold"}}
    (await sandbox.http.post("/_act", json=act)).raise_for_status()
    await turns.turns.abort(turns.who, started.ref.turn)
    view = await turns.settled(started)
    last = (await versions(sandbox, record))[-1]

    assert [(one.state.value, one.no_undo_reason) for one in view.effects] == [
        ("standing", "somebody has changed the record since")
    ]
    assert (last["op"], last["fields"]) == ("edit", {"status": "gold"})
    await turns.must_agree(await truth_of(sandbox), made, started)


async def test_of_two_messages_at_once_one_runs_and_a_repeated_start_is_the_same_turn(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    for attempt in range(8):
        names = [invoice(), invoice()]
        conversation = f"at-once-{names[0]}"

        async def start(
            name: str, *, on_busy: str = "refuse", conversation: str = conversation
        ) -> Started | TurnInProgress:
            try:
                return await turns.turns.start(
                    turns.who,
                    conversation,
                    message=json.dumps({"script": [reply(charge(name)), say("ok")]}),
                    start_key=name,
                    model="script",
                    policies={"charge_card": "immediate"},
                    on_busy="queue" if on_busy == "queue" else "refuse",
                )
            except TurnInProgress as refused:
                return refused

        on_busy = "queue" if attempt % 2 else "refuse"
        # Each is sent twice, as a client does that got no answer in time.
        answers = await asyncio.gather(*(start(name, on_busy=on_busy) for name in (*names, *names)))
        turns_of = [
            {one.ref.turn for one in (answers[n], answers[n + 2]) if isinstance(one, Started)} for n in (0, 1)
        ]
        created = [one for one in answers if isinstance(one, Started) and one.created]
        if on_busy == "queue":
            assert [len(ids) for ids in turns_of] == [1, 1]
            assert sorted(one.state.value for one in created) == ["queued", "running"]
        else:
            assert sorted(len(ids) for ids in turns_of) == [0, 1]
            assert len(created) == 1
        views = [await turns.settled(one) for one in created]

        assert {view.state for view in views} == {TurnState.COMPLETED}
        assert [await charges(sandbox, name) for name in names] == [len(ids) for ids in turns_of]
        await must_have_valid_history(turns, conversation, turns_before=len(created), calls=len(created))
