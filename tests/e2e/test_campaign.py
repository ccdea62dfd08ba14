"""Aborts and native cancels at random moments through the API. TURNSAGA_CAMPAIGN sets how many turns."""

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from tests.e2e.api import Stack
from tests.e2e.judging import judge, taking, three_commits

# The short form runs always; the figures in the docs are of 300 each.
TURNS = int(os.environ.get("TURNSAGA_CAMPAIGN", "40"))
AT_ONCE = 8
_ids = itertools.count(1)


@pytest.fixture
async def slow(stack: Stack) -> AsyncIterator[Stack]:
    """Vendors whose calls take 50 to 150 ms."""
    async with taking(stack, 50, 150):
        yield stack


@pytest.mark.campaign
@pytest.mark.timeout(1200)
async def test_abort_at_a_random_moment_leaves_ledger_and_truth_agreed(slow: Stack) -> None:
    ends: dict[str, str] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with gate:
            turn = await slow.start(*three_commits(f"CA{next(_ids)}"))
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

    for turn, end in ends.items():
        await judge(slow, turn, end)
    assert "aborted" in ends.values(), "no abort met a running turn: the campaign shows nothing"


@pytest.mark.campaign
@pytest.mark.timeout(1200)
async def test_native_cancel_at_a_random_moment_leaves_ledger_and_truth_agreed(slow: Stack) -> None:
    client = await Client.connect(slow.temporal)
    ends: dict[str, str] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with gate:
            turn = await slow.start(*three_commits(f"CC{next(_ids)}"))
            await asyncio.sleep(random.uniform(0, 1.3))
            await client.get_workflow_handle(turn).cancel()
            ends[turn] = str((await slow.settled(turn))["state"])

    await asyncio.gather(*(one() for _ in range(TURNS)))

    for turn, end in ends.items():
        await judge(slow, turn, end)
    assert "aborted" in ends.values(), "no cancel met a running turn: the campaign shows nothing"
