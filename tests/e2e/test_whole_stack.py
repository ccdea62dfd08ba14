"""The whole stack through its API alone, as somebody uses it: parts die, and turns go on."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.databases import Postgres
from tests.dev.driver import free_ports
from tests.e2e.api import MONEY, Stack, stack_at
from tests.stack import call, eventually, reply, say
from turnsaga.testing import disorder


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
    told = await stack.events(turn)

    assert answers == [202, 200, 200]
    assert (late.status_code, late.json()["state"]) == (200, "aborted")
    assert {effect["state"] for effect in view["effects"]} <= {"compensated", "released"}
    assert [event.number for event in told] == list(range(1, len(told) + 1))
    assert told[-1].kind == "turn_settled"
    await stack.must_agree(view)


async def test_posted_message_stands_and_the_charge_beside_it_is_taken_back(stack: Stack) -> None:
    await stack.knobs("hook", latency_ms=300)
    turn = await stack.start(
        reply(call("charge_card", invoice="W-H1", **MONEY)),
        reply(call("post_message", channel="ops", text="W-H1 is charged")),
        say(*["word "] * 400, delay_ms=50),
        policies={"post_message": "immediate!"},
    )

    async def posted() -> bool:
        effects = (await stack.view(turn))["effects"]
        return [effect["state"] for effect in effects] == ["committed", "committed"]

    await eventually(posted, what="the message")
    await stack.web.post(f"/v1/turns/{turn}/abort")
    view = await stack.settled(turn)
    messages = (await stack.sandbox.get("/hook/messages")).json()["messages"]

    assert {effect["identity"]: effect["state"] for effect in view["effects"]} == {
        "W-H1": "compensated",
        "ops/W-H1 is charged": "standing",
    }
    assert [message["text"] for message in messages] == ["W-H1 is charged"]
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
    first = await stack.events(turn, most=4)
    os.kill(stack.pids["web"], signal.SIGKILL)
    stack.pids["web"] = (await stack.driver.restarted(10)).pid
    view = await stack.settled(turn)
    rest = await stack.events(turn, after=first[-1].number)

    assert view["state"] == "completed"
    assert [event.number for event in first + rest] == list(range(1, len(first + rest) + 1))
    assert rest[-1].kind == "turn_settled"
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


@pytest.mark.timeout(200)
async def test_ledger_on_postgres_survives_its_connections_and_the_worker(
    postgres: Postgres, tmp_path: Path
) -> None:
    """The same stack over Postgres: connections are cut and the worker killed while charges are out."""
    url = postgres.new_database()
    async with stack_at(free_ports(5), tmp_path, "--database", url) as stack:
        await stack.knobs("pay", latency_ms=800)
        goes_on = await stack.start(reply(call("charge_card", invoice="D-1", **MONEY)), say("Done."))
        stopped = await stack.start(
            reply(call("create_record", kind="ticket", id="D-2")),
            reply(call("charge_card", invoice="D-3", **MONEY)),
        )
        await eventually(lambda: _committing(stack, stopped, "D-3"))
        postgres.drop_connections(url)
        answer = await stack.web.post(f"/v1/turns/{stopped}/abort")
        os.kill(stack.pids["worker"][0], signal.SIGKILL)
        views = [await stack.settled(turn, within=90) for turn in (goes_on, stopped)]
        told = await stack.events(stopped)
        await stack.must_agree(*views)

    assert answer.status_code == 202
    assert [view["state"] for view in views] == ["completed", "aborted"]
    assert {effect["state"] for effect in views[1]["effects"]} == {"compensated"}
    assert disorder(told) == ()


async def _committing(stack: Stack, turn: str, identity: str) -> bool:
    effects = (await stack.view(turn))["effects"]
    return any((effect["identity"], effect["state"]) == (identity, "committing") for effect in effects)
