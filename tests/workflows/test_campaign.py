"""Aborts and native cancels at random moments, many at once. TURNSAGA_CAMPAIGN sets how many turns."""

import asyncio
import itertools
import os
import random

import pytest

from tests.stack import WHO, SandboxProcess, Turns, call, reply, say
from turnsaga.ledger import TurnState
from turnsaga.store import Started
from turnsaga.testing import Truth

# The short form runs always; the figures of docs/ are of 300 each.
TURNS = int(os.environ.get("TURNSAGA_CAMPAIGN", "40"))
AT_ONCE = 8
_ids = itertools.count(1)


def script(turn: str) -> list[dict[str, object]]:
    """Return a turn with a charge, and two more tools that are queued behind it."""
    money = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
    return [
        reply(call("charge_card", invoice=f"{turn}-1", **money), **say("Charging. ")),
        reply(call("create_record", kind="ticket", id=f"{turn}-2", fields={"n": 1})),
        reply(call("charge_card", invoice=f"{turn}-3", **money)),
        say("Done: {{results}}"),
    ]


@pytest.fixture
async def slow_vendors(sandbox: SandboxProcess) -> SandboxProcess:
    """Vendors whose commits take 50 to 150 ms, different from run to run but one latency a turn."""
    await sandbox.knobs("pay", latency_ms=random.randint(50, 150))
    await sandbox.knobs("crm", latency_ms=random.randint(50, 150))
    return sandbox


async def judge(turns: Turns, sandbox: SandboxProcess, started: list[Started], accepted: set[str]) -> None:
    """Hold every turn against the truth; ``accepted`` are those whose abort was the first."""
    truth = Truth.model_validate(await sandbox.truth())
    for turn in started:
        view = await turns.settled(turn, within=60)
        await turns.must_agree(truth, turn)
        if turn.ref.turn in accepted:
            assert view.state is TurnState.ABORTED
            assert {effect.state.value for effect in view.effects} <= {"compensated", "released"}
        else:
            assert view.state is TurnState.COMPLETED
            assert [effect.state.value for effect in view.effects] == ["committed"] * 3


@pytest.mark.campaign
async def test_abort_at_a_random_moment_leaves_ledger_and_truth_agreed(
    turns: Turns, slow_vendors: SandboxProcess
) -> None:
    accepted: set[str] = set()
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> Started:
        async with gate:
            started = await turns.start(*script(f"CA{next(_ids)}"))
            await asyncio.sleep(random.uniform(0, 1.2))
            answer = await turns.turns.abort(WHO, started.ref.turn)
            if answer.first:
                accepted.add(started.ref.turn)
            else:
                assert answer.state is TurnState.COMPLETED
            await turns.settled(started, within=60)
            return started

    started = list(await asyncio.gather(*(one() for _ in range(TURNS))))

    await judge(turns, slow_vendors, started, accepted)
    assert accepted, "no abort met a running turn: the campaign shows nothing"


@pytest.mark.campaign
async def test_native_cancel_at_a_random_moment_leaves_ledger_and_truth_agreed(
    turns: Turns, slow_vendors: SandboxProcess
) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> Started:
        async with gate:
            started = await turns.start(*script(f"CC{next(_ids)}"))
            await asyncio.sleep(random.uniform(0, 1.0))
            # A cancel of a run that has just completed is refused by Temporal; the judge looks at the state.
            await turns.handle(started).cancel()
            await turns.settled(started, within=60)
            return started

    started = list(await asyncio.gather(*(one() for _ in range(TURNS))))
    aborted = {turn.ref.turn for turn in started if (await turns.view(turn)).state is TurnState.ABORTED}

    await judge(turns, slow_vendors, started, aborted)
    assert aborted, "no cancel met a running turn: the campaign shows nothing"
