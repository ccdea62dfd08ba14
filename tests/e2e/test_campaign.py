"""Aborts and native cancels at random moments through the API. TURNSAGA_CAMPAIGN sets how many turns."""

import asyncio
import itertools
import os
import random
from typing import Any

import pytest
from temporalio.client import Client

from tests.e2e.api import MONEY, Stack
from tests.stack import call, reply, say
from turnsaga.testing import disorder

# The short form runs always; the figures in the docs are of 300 each.
TURNS = int(os.environ.get("TURNSAGA_CAMPAIGN", "40"))
AT_ONCE = 8
_ids = itertools.count(1)


def script(turn: str) -> list[dict[str, Any]]:
    """Return a turn with a charge, and two more tools that are queued behind it."""
    return [
        reply(call("charge_card", invoice=f"{turn}-1", **MONEY), **say("Charging. ")),
        reply(call("create_record", kind="ticket", id=f"{turn}-2", fields={"n": 1})),
        reply(call("charge_card", invoice=f"{turn}-3", **MONEY)),
        say("Done: {{results}}"),
    ]


@pytest.fixture
async def slow(stack: Stack) -> Stack:
    """Vendors whose calls take 50 to 150 ms."""
    await stack.knobs("pay", latency_ms=random.randint(50, 150))
    await stack.knobs("crm", latency_ms=random.randint(50, 150))
    return stack


async def judge(stack: Stack, ends: dict[str, str]) -> None:
    """Hold every turn against the truth, and its state against what its abort was answered."""
    for turn, end in ends.items():
        view = await stack.settled(turn)
        states = [effect["state"] for effect in view["effects"]]
        assert view["state"] == end
        if end == "aborted":
            assert set(states) <= {"compensated", "released"}
        else:
            assert states == ["committed"] * 3
        await stack.must_agree(view)
        assert disorder(await stack.events(turn)) == ()


@pytest.mark.campaign
@pytest.mark.timeout(1200)
async def test_abort_at_a_random_moment_leaves_ledger_and_truth_agreed(slow: Stack) -> None:
    ends: dict[str, str] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with gate:
            turn = await slow.start(*script(f"CA{next(_ids)}"))
            await asyncio.sleep(random.uniform(0, 1.5))
            answer = await slow.web.post(f"/v1/turns/{turn}/abort", json={"reason": "campaign"})
            if answer.status_code == 202:
                ends[turn] = "aborted"
            else:
                # 200: it had ended before; never "completed" after an abort that was accepted.
                assert (answer.status_code, answer.json()["state"]) == (200, "completed")
                ends[turn] = "completed"
            await slow.settled(turn)

    await asyncio.gather(*(one() for _ in range(TURNS)))

    await judge(slow, ends)
    assert "aborted" in ends.values(), "no abort met a running turn: the campaign shows nothing"


@pytest.mark.campaign
@pytest.mark.timeout(1200)
async def test_native_cancel_at_a_random_moment_leaves_ledger_and_truth_agreed(slow: Stack) -> None:
    client = await Client.connect(slow.temporal)
    ends: dict[str, str] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with gate:
            turn = await slow.start(*script(f"CC{next(_ids)}"))
            await asyncio.sleep(random.uniform(0, 1.3))
            await client.get_workflow_handle(turn).cancel()
            ends[turn] = str((await slow.settled(turn))["state"])

    await asyncio.gather(*(one() for _ in range(TURNS)))

    await judge(slow, ends)
    assert "aborted" in ends.values(), "no cancel met a running turn: the campaign shows nothing"
