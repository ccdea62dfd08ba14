"""The doors that need the whole stack: through its API, with parts that are stopped or gone."""

import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus

from tests.dev.driver import free_ports
from tests.e2e.api import LETTER, MONEY, Stack, stack_at
from tests.e2e.insight import Insight, insight_into
from tests.stack import call, eventually, reply, say
from turnsaga.ledger import State, TurnState
from turnsaga.models import TurnView

_ids = itertools.count(1)
THINKING = say(*["thinking "] * 400, delay_ms=50)
# The development stack sweeps each 15 s, and leaves turns alone for their first 5.
SWEPT_WITHIN_S = 40


@pytest.fixture
async def insight(stack: Stack) -> AsyncIterator[Insight]:
    async with insight_into(stack) as behind:
        yield behind


def name() -> str:
    return f"DOOR-{next(_ids)}"


async def halfway(stack: Stack) -> str:
    """Start a turn with a record and a mail done, and a charge on the wire."""
    charged = name()
    await stack.knobs("pay", latency_ms=3000, only={"op": "apply", "identity": charged})
    turn = await stack.start(
        reply(
            call("create_record", kind="ticket", id=name()),
            call("send_invoice_email", invoice=name(), **LETTER),
        ),
        reply(call("charge_card", invoice=charged, **MONEY)),
        THINKING,
        policies={"send_invoice_email": "immediate!"},
    )
    await eventually(lambda: on_the_wire(stack, charged), within=30, what="a charge on the wire")
    return turn


async def on_the_wire(stack: Stack, charged: str) -> bool:
    calls = (await stack.sandbox.get("/_truth")).json()["calls"]
    return any(
        (each["op"], each["identity"], each["answered"]) == ("apply", charged, False) for each in calls
    )


def must_be_undone(view: TurnView) -> None:
    assert view.state is TurnState.ABORTED
    assert [(effect.tool, effect.state) for effect in sorted(view.effects, key=lambda one: one.tool)] == [
        ("charge_card", State.COMPENSATED),
        ("create_record", State.COMPENSATED),
        ("send_invoice_email", State.STANDING),
    ]


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Keep a process from running, as one that hangs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_turn_that_an_administrator_terminates_is_shown_as_stopped_and_its_conversation_is_free(
    stack: Stack, insight: Insight
) -> None:
    """A7.3: the page says so within some seconds, by itself, and its user can go on."""
    turn = await halfway(stack)
    following = asyncio.create_task(stack.events(turn))
    await insight.temporal.get_workflow_handle(turn).terminate("an administrator")
    terminated = time.monotonic()
    before = await stack.view(turn)
    refused = await stack.started(say("ok"), conversation=before["conversation"])
    view = await stack.settled(turn, within=SWEPT_WITHIN_S)
    took = time.monotonic() - terminated
    told = await asyncio.wait_for(following, 10)
    ended = await insight.must_be_whole(turn)
    late = await stack.web.post(f"/v1/turns/{turn}/abort")

    assert (before["state"], before["settlement"]) == ("running", None)
    assert (refused.status_code, refused.json()["type"]) == (409, "turn_in_progress")
    assert took < SWEPT_WITHIN_S
    assert (view["state"], view["reason"]) == ("aborted", "the run of this turn ended without settling it")
    assert [event.data["via"] for event in told if event.kind == "turn_aborting"] == ["recovery"]
    assert told[-1].kind == "turn_settled"
    assert (late.status_code, late.json()["state"]) == (200, "aborted")
    must_be_undone(ended)


async def test_abort_of_a_turn_that_was_terminated_holds_and_is_carried_out(
    stack: Stack, insight: Insight
) -> None:
    """A7.3 by a user who doesn't wait for the sweeper: their Stop isn't refused since there is no run."""
    turn = await halfway(stack)
    await insight.temporal.get_workflow_handle(turn).terminate("an administrator")
    answer = await stack.web.post(f"/v1/turns/{turn}/abort", json={"reason": "enough"})
    view = await insight.must_be_whole(turn, within=SWEPT_WITHIN_S)

    assert (answer.status_code, answer.json()["state"]) == (202, "aborting")
    assert view.reason == "enough"
    must_be_undone(view)


async def test_abort_by_the_link_of_the_start_reaches_a_turn_that_a_confirmation_continued(
    stack: Stack, insight: Insight
) -> None:
    """A5.6: the turn has paused and gone on since; the client knows it by what it first got."""
    letter, charged = name(), name()
    started = await stack.started(
        reply(call("send_invoice_email", invoice=letter, **LETTER)),
        reply(call("charge_card", invoice=charged, **MONEY)),
        THINKING,
        policies={"send_invoice_email": "confirmed"},
    )
    first_got = started.json()
    question = await stack.held(first_got["turn"])
    confirmed = await stack.web.post(
        f"/v1/effects/{question['effect']}/confirm",
        json={"version": question["version"], "digest": question["digest"]},
    )
    await eventually(lambda: committed(stack, first_got["turn"], 2), what="what follows the confirmation")
    answer = await stack.web.post(first_got["links"]["abort"])
    view = await insight.must_be_whole(first_got["turn"])

    assert confirmed.status_code == 202
    assert (answer.status_code, answer.json()["turn"]) == (202, first_got["turn"])
    assert view.state is TurnState.ABORTED
    assert {effect.identity: effect.state for effect in view.effects} == {
        letter: State.STANDING,
        charged: State.COMPENSATED,
    }


async def committed(stack: Stack, turn: str, count: int) -> bool:
    states = [effect["state"] for effect in (await stack.view(turn))["effects"]]
    return states == ["committed"] * count


async def test_abort_is_recorded_at_once_though_temporal_hangs(stack: Stack, insight: Insight) -> None:
    """A5.7: the signal can't be delivered, nor is refused; the fence is there within a second."""
    turn = await halfway(stack)
    with suspended(stack.pids["temporal"]):
        began = time.monotonic()
        asked = asyncio.create_task(stack.web.post(f"/v1/turns/{turn}/abort", json={"reason": "now"}))
        await eventually(lambda: is_aborting(stack, turn), within=5, what="the fence")
        recorded = time.monotonic() - began
        answer = await asked
        answered = time.monotonic() - began
    view = await insight.must_be_whole(turn, within=90)

    assert recorded <= 1.0
    assert (answer.status_code, answer.json()["state"]) == (202, "aborting")
    assert answered <= 5.0
    assert view.reason == "now"
    must_be_undone(view)


async def is_aborting(stack: Stack, turn: str) -> bool:
    return bool((await stack.view(turn))["state"] == "aborting")


async def test_abort_is_recorded_at_once_though_followers_take_nothing(
    stack: Stack, insight: Insight
) -> None:
    """A5.7: forty readers of the turn's events, whose sockets are full and stay so."""
    turn = await stack.start(
        reply(
            call("create_record", kind="ticket", id=name()), **say(*["a long word " * 2000] * 20, delay_ms=80)
        ),
        THINKING,
    )
    with ExitStack() as followers:
        for _ in range(40):
            followers.enter_context(follower_that_hangs(stack, turn))
        await eventually(lambda: committed(stack, turn, 1), within=30, what="the record")
        began = time.monotonic()
        answer = await stack.web.post(f"/v1/turns/{turn}/abort")
        answered = time.monotonic() - began
        view = await insight.must_be_whole(turn)

    assert answer.status_code == 202
    assert answered <= 1.0
    assert (view.state, view.effects[0].state) == (TurnState.ABORTED, State.COMPENSATED)


@contextmanager
def follower_that_hangs(stack: Stack, turn: str) -> Iterator[None]:
    """Ask for a turn's events, and never read."""
    with socket.socket() as silent:
        # Small packets and a small window, else the kernel takes the whole turn for the reader.
        silent.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        silent.connect((stack.web.base_url.host, stack.web.base_url.port))
        silent.sendall(
            f"GET /v1/turns/{turn}/events HTTP/1.1\r\nHost: {stack.web.base_url.netloc.decode()}\r\n"
            f"X-Turnsaga-User: acme/ada\r\n\r\n".encode()
        )
        yield


async def test_abort_after_web_tier_and_worker_were_killed_in_a_commit_is_carried_out(
    stack: Stack, insight: Insight
) -> None:
    """A6.3: the turn is taken up again, and Stop isn't a word into the void."""
    turn = await halfway(stack)
    await stack.kill("web")
    await stack.kill("worker")
    await stack.serves()
    shown = (await stack.view(turn))["state"]
    run = (await insight.temporal.get_workflow_handle(turn).describe()).status
    answer = await stack.web.post(f"/v1/turns/{turn}/abort")
    view = await insight.must_be_whole(turn, within=90)
    closed = (await insight.temporal.get_workflow_handle(turn).describe()).status

    assert (shown, run) == ("running", WorkflowExecutionStatus.RUNNING)
    assert (answer.status_code, answer.json()["state"]) == (202, "aborting")
    assert closed is WorkflowExecutionStatus.COMPLETED
    must_be_undone(view)


def lose_temporal(data: Path) -> None:
    for file in data.glob("temporal.db*"):
        file.unlink()


@pytest.mark.timeout(300)
async def test_turns_of_a_temporal_whose_store_is_gone_are_settled_by_an_empty_one(tmp_path: Path) -> None:
    """Everything dies with a charge on the wire, and Temporal's disk with it; one turn had ended before."""
    base = free_ports(5)
    async with stack_at(base, tmp_path) as stack:
        done = await stack.start(reply(call("charge_card", invoice="GONE-1", **MONEY)), say("Done."))
        before = await stack.settled(done)
        turn = await halfway(stack)
        stack.driver.signal(signal.SIGKILL)
        await stack.driver.end()
    lose_temporal(tmp_path)
    async with stack_at(base, tmp_path) as stack, insight_into(stack) as insight:
        view = await insight.must_be_whole(turn, within=90)
        after = await insight.must_be_whole(done)
        stack.driver.signal(signal.SIGTERM)
        assert (await stack.driver.end())[0] == 0

    must_be_undone(view)
    assert view.reason == "the run of this turn ended without settling it"
    assert after == TurnView.model_validate(before)
