"""Turns of three commits that are stopped at random moments, and how each is judged afterwards."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.e2e.api import MONEY, Stack
from tests.stack import call, reply, say
from turnsaga.testing import disorder

VENDORS = ("pay", "crm")


def three_commits(name: str) -> list[dict[str, Any]]:
    """Return a turn with a charge, and two more tools that are queued behind it."""
    return [
        reply(call("charge_card", invoice=f"{name}-1", **MONEY), **say("Charging. ")),
        reply(call("create_record", kind="ticket", id=f"{name}-2", fields={"n": 1})),
        reply(call("charge_card", invoice=f"{name}-3", **MONEY)),
        say("Done: {{results}}"),
    ]


@asynccontextmanager
async def taking(stack: Stack, shortest_ms: int, longest_ms: int) -> AsyncIterator[None]:
    """Have the vendors' calls, undos too, take between so and so long: each one's own time."""

    async def vary() -> None:
        while True:
            for vendor in VENDORS:
                await stack.knobs(vendor, latency_ms=random.randint(shortest_ms, longest_ms))
            await asyncio.sleep(shortest_ms / 1000)

    varying = asyncio.create_task(vary())
    try:
        yield
    finally:
        varying.cancel()
        await asyncio.gather(varying, return_exceptions=True)


async def judge(stack: Stack, turn: str, end: str) -> dict[str, Any]:
    """Hold a turn against the truth, and its state against the end that it must have; return its view."""
    view = await stack.settled(turn)
    states = [effect["state"] for effect in view["effects"]]
    assert view["state"] == end
    if end == "aborted":
        assert set(states) <= {"compensated", "released"}
    else:
        assert states == ["committed"] * 3
    await stack.must_agree(view)
    assert disorder(await stack.events(turn)) == ()
    return view


def calls_of(truth: dict[str, Any], view: dict[str, Any], op: str) -> Sequence[str]:
    """Return the identities of a turn's effects, one for each call of this kind that the vendors had."""
    mine = {effect["identity"] for effect in view["effects"]}
    return [each["identity"] for each in truth["calls"] if each["op"] == op and each["identity"] in mine]
