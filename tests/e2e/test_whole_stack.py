"""The whole stack through its API alone, as somebody uses it: parts die, and turns go on."""

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dev.driver import Driver, free_ports, running
from tests.stack import call, eventually, reply, say
from turnsaga.models import EffectView
from turnsaga.testing import Truth, differences

_ids = itertools.count(1)
SYSTEMS = {"charge_card": "pay", "create_record": "crm", "update_record": "crm", "send_invoice_email": "mail"}
MONEY = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}


@dataclass
class Stack:
    """A running development stack, driven over HTTP."""

    driver: Driver
    web: httpx.AsyncClient
    sandbox: httpx.AsyncClient
    pids: dict[str, Any]

    async def start(self, *replies: Mapping[str, Any], **body: Any) -> str:
        number = next(_ids)
        answer = await self.web.post(
            f"/v1/conversations/e2e-{number}/turns",
            json={"message": json.dumps({"script": list(replies)}), **body},
            headers={"Idempotency-Key": f"k{number}"},
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["turn"])

    async def view(self, turn: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.web.get(f"/v1/turns/{turn}")).json()
        return found

    async def reaches(self, turn: str, state: str) -> None:
        async def there() -> bool:
            return any(effect["state"] == state for effect in (await self.view(turn))["effects"])

        await eventually(there, what=f"an effect {state}")

    async def settled(self, turn: str, *, within: float = 60) -> dict[str, Any]:
        async def ended() -> dict[str, Any] | None:
            try:
                found = await self.view(turn)
            except httpx.TransportError:
                return None
            return found if found.get("settlement") else None

        result: dict[str, Any] = await eventually(ended, within=within, what=f"the end of {turn}")
        return result

    async def knobs(self, system: str, **knobs: Any) -> None:
        (await self.sandbox.put(f"/_control/{system}", json=knobs)).raise_for_status()

    async def must_agree(self, *views: dict[str, Any]) -> None:
        truth = Truth.model_validate((await self.sandbox.get("/_truth")).json())
        effects = [EffectView.model_validate(effect) for view in views for effect in view["effects"]]
        mine = {(SYSTEMS[effect.tool], effect.identity) for effect in effects}
        own = Truth(effects=tuple(e for e in truth.effects if (e.system, e.identity) in mine))
        assert differences(effects, own, SYSTEMS) == ()
        assert all(true.applied <= 1 for true in own.effects)


@asynccontextmanager
async def stack_at(base: int, data: Path) -> AsyncIterator[Stack]:
    """Run the stack on these ports over this data."""
    argv = ("-m", "workers", "dev", "--port-base", str(base), "--data", str(data))
    async with running(*argv) as driver:
        ready = json.loads(await driver.line(60))
        async with (
            httpx.AsyncClient(
                base_url=ready["web"], headers={"X-Turnsaga-User": "acme/ada"}, timeout=30
            ) as web,
            httpx.AsyncClient(base_url=ready["sandbox"], timeout=10) as sandbox,
        ):
            yield Stack(driver, web, sandbox, ready["pids"])


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with stack_at(free_ports(5), tmp_path_factory.mktemp("stack")) as running_stack:
        yield running_stack
        running_stack.driver.signal(signal.SIGTERM)
        code, _ = await running_stack.driver.end()
        assert code == 0


@pytest.fixture(autouse=True)
async def well_behaved(request: pytest.FixtureRequest) -> None:
    if "stack" in request.fixturenames:
        stack: Stack = request.getfixturevalue("stack")
        (await stack.sandbox.delete("/_control")).raise_for_status()


async def events(stack: Stack, turn: str, after: int = 0, most: int | None = None) -> list[tuple[int, str]]:
    """Read a turn's events until they end, or until there are so many."""
    found: list[tuple[int, str]] = []
    number, kind = 0, ""
    headers = {"Last-Event-ID": str(after)} if after else {}
    async with stack.web.stream("GET", f"/v1/turns/{turn}/events", headers=headers) as stream:
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                number = int(value)
            elif name == "event":
                kind = value
            elif name == "data":
                found.append((number, kind))
                if most is not None and len(found) >= most:
                    break
    return found


async def test_parallel_charges_and_an_abort_through_the_api_alone(stack: Stack) -> None:
    await stack.knobs("pay", latency_ms=700)
    turn = await stack.start(
        reply(call("create_record", kind="ticket", id="W-1")),
        reply(call("charge_card", invoice="W-2", **MONEY), call("charge_card", invoice="W-3", **MONEY)),
        reply(call("charge_card", invoice="W-4", **MONEY)),
    )
    await stack.reaches(turn, "committed")
    await asyncio.sleep(0.3)
    answers = [
        (await stack.web.post(f"/v1/turns/{turn}/abort", json={"seen": 3})).status_code for _ in range(3)
    ]
    view = await stack.settled(turn)
    late = await stack.web.post(f"/v1/turns/{turn}/abort")
    told = await events(stack, turn)

    assert answers == [202, 200, 200]
    assert (late.status_code, late.json()["state"]) == (200, "aborted")
    assert {effect["state"] for effect in view["effects"]} <= {"compensated", "released"}
    assert [number for number, _ in told] == list(range(1, len(told) + 1))
    assert told[-1][1] == "turn_settled"
    await stack.must_agree(view)


async def test_temporal_that_dies_in_the_middle_is_waited_for(stack: Stack) -> None:
    await stack.knobs("pay", latency_ms=1500)
    turn = await stack.start(reply(call("charge_card", invoice="T-1", **MONEY)), say("Done."))
    await stack.reaches(turn, "committing")
    os.kill(stack.pids["temporal"], signal.SIGKILL)
    restarted = await stack.driver.restarted(10)
    stack.pids["temporal"] = restarted.pid
    view = await stack.settled(turn, within=90)

    assert restarted.restarted == "temporal"
    assert view["state"] == "completed"
    await stack.must_agree(view)


async def test_abort_while_temporal_is_away_holds_and_settles_later(stack: Stack) -> None:
    await stack.knobs("pay", latency_ms=1500)
    turn = await stack.start(
        reply(call("charge_card", invoice="T-2", **MONEY)), reply(call("charge_card", invoice="T-3", **MONEY))
    )
    await stack.reaches(turn, "committing")
    os.kill(stack.pids["temporal"], signal.SIGKILL)
    answer = await stack.web.post(f"/v1/turns/{turn}/abort")
    stack.pids["temporal"] = (await stack.driver.restarted(10)).pid
    view = await stack.settled(turn, within=90)

    assert (answer.status_code, answer.json()["state"]) == (202, "aborting")
    assert [(effect["identity"], effect["state"]) for effect in view["effects"]] == [("T-2", "compensated")]
    await stack.must_agree(view)


async def test_web_tier_that_dies_changes_nothing_and_the_stream_goes_on_where_it_was(stack: Stack) -> None:
    turn = await stack.start(
        say(*["word "] * 60, delay_ms=50, calls=[call("charge_card", invoice="V-1", **MONEY)]), say("Done.")
    )
    first = await events(stack, turn, most=4)
    os.kill(stack.pids["web"], signal.SIGKILL)
    stack.pids["web"] = (await stack.driver.restarted(10)).pid
    view = await stack.settled(turn)
    rest = await events(stack, turn, after=first[-1][0])

    assert view["state"] == "completed"
    assert [number for number, _ in first + rest] == list(range(1, len(first + rest) + 1))
    assert rest[-1][1] == "turn_settled"
    await stack.must_agree(view)


async def test_vendor_that_dies_in_a_charge_is_asked_again(stack: Stack) -> None:
    await stack.knobs("pay", latency_ms=1200)
    turn = await stack.start(reply(call("charge_card", invoice="P-1", **MONEY)), say("Done."))
    await stack.reaches(turn, "committing")
    await asyncio.sleep(0.3)
    os.kill(stack.pids["sandbox"], signal.SIGKILL)
    stack.pids["sandbox"] = (await stack.driver.restarted(10)).pid
    view = await stack.settled(turn, within=90)

    assert view["effects"][0]["state"] == "committed"
    await stack.must_agree(view)


@pytest.mark.timeout(200)
async def test_second_start_on_the_same_data_goes_on_with_what_was_open(tmp_path: Path) -> None:
    base = free_ports(5)
    async with stack_at(base, tmp_path) as stack:
        await stack.knobs("pay", latency_ms=2500)
        goes_on = await stack.start(reply(call("charge_card", invoice="S-1", **MONEY)), say("Done."))
        stopped = await stack.start(
            reply(call("create_record", kind="ticket", id="S-2")),
            reply(call("charge_card", invoice="S-3", **MONEY)),
        )
        await stack.reaches(goes_on, "committing")
        await stack.reaches(stopped, "committing")
        await eventually(lambda: _committing(stack, stopped, "S-3"))
        await stack.web.post(f"/v1/turns/{stopped}/abort")
        # Everything at once, with two charges on the wire: no part gets to end anything.
        stack.driver.signal(signal.SIGKILL)
        await stack.driver.end()
    async with stack_at(base, tmp_path) as stack:
        views = [await stack.settled(turn, within=90) for turn in (goes_on, stopped)]
        await stack.must_agree(*views)
        stack.driver.signal(signal.SIGTERM)
        assert (await stack.driver.end())[0] == 0

    assert [view["state"] for view in views] == ["completed", "aborted"]
    assert {effect["state"] for effect in views[1]["effects"]} == {"compensated"}


async def _committing(stack: Stack, turn: str, identity: str) -> bool:
    effects = (await stack.view(turn))["effects"]
    return any((effect["identity"], effect["state"]) == (identity, "committing") for effect in effects)
