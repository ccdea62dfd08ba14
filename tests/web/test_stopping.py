"""Stopping a turn: once, twice, late, with Temporal away, and with nobody left to hear the answer."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from tests.web.served import ADA, EVE, Api, assert_problem, served, until
from turnsaga.client import Aborted, TurnClient
from turnsaga.models import Principal, StepRef
from turnsaga.plugin import TurnSagaPlugin


async def test_first_abort_stops_the_turn_and_further_ones_find_it_stopped(api: Api) -> None:
    turn = await api.start()
    first = await api.http.post(f"/v1/turns/{turn}/abort", json={"reason": "wrong one", "seen": 1})
    second = await api.http.post(f"/v1/turns/{turn}/abort", json={"reason": "really"})
    await api.settle(turn)
    third = await api.http.post(f"/v1/turns/{turn}/abort")

    assert (first.status_code, first.json()["state"], first.json()["reason"]) == (
        202,
        "aborting",
        "wrong one",
    )
    assert (second.status_code, second.json()) == (200, first.json())
    assert (third.status_code, third.json()["state"]) == (200, "aborted")
    assert third.json()["settlement"] is not None
    assert turn in api.temporal.signalled
    page = await api.store.event_page(ADA, turn, after=0)
    fences = [event.data for event in page.events if event.kind == "turn_aborting"]
    assert [(data["reason"], data["seen"], data["by"], data["via"]) for data in fences] == [
        ("wrong one", 1, "acme/ada", "api")
    ]


async def test_abort_answers_what_looking_at_the_turn_answers(api: Api) -> None:
    turn = await api.start()
    await api.commit(turn)
    stopped = await api.http.post(f"/v1/turns/{turn}/abort")

    assert stopped.json() == (await api.http.get(f"/v1/turns/{turn}")).json()


async def test_abort_after_the_end_changes_nothing(api: Api) -> None:
    turn = await api.start()
    await api.complete(turn)
    answer = await api.http.post(f"/v1/turns/{turn}/abort")

    assert (answer.status_code, answer.json()["state"]) == (200, "completed")
    assert api.temporal.signalled == []


async def test_of_many_aborts_at_once_one_is_the_first(api: Api) -> None:
    turn = await api.start()
    answers = await asyncio.gather(*(api.http.post(f"/v1/turns/{turn}/abort") for _ in range(8)))

    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [202]
    assert len({answer.text for answer in answers}) == 1


async def test_abort_holds_while_temporal_is_away(api: Api) -> None:
    turn = await api.start()
    api.temporal.away = True
    answer = await api.http.post(f"/v1/turns/{turn}/abort")

    assert (answer.status_code, answer.json()["state"]) == (202, "aborting")
    assert not await api.store.append_text(StepRef(tenant="acme", turn=turn, step=1), "more")


async def test_abort_does_not_wait_for_a_temporal_that_never_answers(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lazy client that has yet to connect has no time limit of its own."""
    monkeypatch.setattr("turnsaga.client._RPC", timedelta(seconds=0.3))
    turn = await api.start()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        lazy = await Client.connect(address, lazy=True, plugins=[TurnSagaPlugin()])
        monkeypatch.setattr(api.app.state.tier.client, "_temporal", lazy)
        async with asyncio.timeout(5):
            answer = await api.http.post(f"/v1/turns/{turn}/abort")

    assert (answer.status_code, answer.json()["state"]) == (202, "aborting")


@pytest.mark.parametrize(
    ("body", "status", "word", "field"),
    [
        (b"{", 400, "malformed_json", None),
        (b"[]", 422, "invalid_request", "body"),
        (b'{"raeson": "x"}', 422, "invalid_request", "raeson"),
        (b'{"seen": -1}', 422, "invalid_request", "seen"),
        (b'{"seen": 9223372036854775808}', 422, "invalid_request", "seen"),
        (b'{"seen": "3"}', 422, "invalid_request", "seen"),
        (b'{"reason": "' + b"x" * 501 + b'"}', 422, "invalid_request", "reason"),
    ],
    ids=range(7),
)
async def test_malformed_abort_stops_nothing(
    api: Api, body: bytes, status: int, word: str, field: str | None
) -> None:
    turn = await api.start()
    answer = await api.http.post(f"/v1/turns/{turn}/abort", content=body)

    assert_problem(answer, status, word, field=field)
    assert (await api.store.turn_view(ADA, turn)).state == "running"


@pytest.mark.parametrize("body", [b"", b"  ", b"{}", b'{"reason": null, "seen": null}'])
async def test_abort_needs_no_body(api: Api, body: bytes) -> None:
    turn = await api.start()

    assert (await api.http.post(f"/v1/turns/{turn}/abort", content=body)).status_code == 202


async def test_conversation_abort_stops_its_active_turn(api: Api) -> None:
    turn = await api.start("c1")
    first = await api.http.post("/v1/conversations/c1/abort", json={"reason": "enough"})
    second = await api.http.post("/v1/conversations/c1/abort", json={"expected_turn": turn})

    assert (first.status_code, first.json()["turn"], first.json()["reason"]) == (202, turn, "enough")
    assert (second.status_code, second.json()) == (200, first.json())


async def test_conversation_abort_leaves_another_turn_than_the_expected_one_alone(api: Api) -> None:
    before = await api.start("c1")
    await api.complete(before)
    active = await api.start("c1")
    answer = await api.http.post("/v1/conversations/c1/abort", json={"expected_turn": before})

    assert_problem(answer, 409, "stale", turn=active)
    assert (await api.store.turn_view(ADA, active)).state == "running"


async def test_conversation_abort_of_an_expected_turn_that_has_ended_shows_it(api: Api) -> None:
    turn = await api.start("c1")
    await api.complete(turn)
    answer = await api.http.post("/v1/conversations/c1/abort", json={"expected_turn": turn})

    assert (answer.status_code, answer.json()["state"]) == (200, "completed")


async def test_conversation_abort_after_the_end_shows_the_newest_turn(api: Api) -> None:
    await api.complete(await api.start("c1"))
    newest = await api.start("c1")
    await api.complete(newest)
    answer = await api.http.post("/v1/conversations/c1/abort")

    assert (answer.status_code, answer.json()["turn"], answer.json()["state"]) == (200, newest, "completed")


@pytest.mark.parametrize("body", [{}, {"expected_turn": "trn_unknown"}])
async def test_conversation_abort_without_a_turn_is_not_found(api: Api, body: dict[str, Any]) -> None:
    assert_problem(await api.http.post("/v1/conversations/c1/abort", json=body), 404, "not_found")


async def test_conversation_abort_finds_no_turn_of_another_conversation(api: Api) -> None:
    turn = await api.start("c2")
    await api.complete(turn)
    elsewhere = await api.http.post("/v1/conversations/c1/abort", json={"expected_turn": turn})
    unknown = await api.http.post("/v1/conversations/c1/abort", json={"expected_turn": "trn_unknown"})

    assert_problem(elsewhere, 404, "not_found")
    assert elsewhere.text.replace(turn, "ID") == unknown.text.replace("trn_unknown", "ID")


async def test_abort_is_finished_when_its_client_has_gone(api: Api) -> None:
    turn = await api.start()
    with held_aborts() as gate:
        async with served(api) as tier, tier.http() as http:
            request = asyncio.create_task(http.post(f"/v1/turns/{turn}/abort"))
            await until(gate.reached.is_set)
            request.cancel()
            await asyncio.wait({request})
            gate.opened.set()
            await until(gate.passed.is_set)

    assert (await api.store.turn_view(ADA, turn)).state == "aborting"


async def test_abort_is_finished_when_the_server_stops(api: Api) -> None:
    """The server cancels the handler once its grace is over; what it had begun goes on."""
    turn = await api.start()
    with held_aborts() as gate:
        async with served(api, grace_s=1) as tier, tier.http() as http:
            request = asyncio.create_task(http.post(f"/v1/turns/{turn}/abort"))
            await until(gate.reached.is_set)
            tier.server.stop()
            await asyncio.wait({request})
            before = (await api.store.turn_view(ADA, turn)).state
            stopped_early = tier.ended.done()
            gate.opened.set()
            await asyncio.wait_for(tier.ended, 5)

    assert_problem(request.result(), 503, "stopping")
    assert request.result().headers["retry-after"] == "1"
    assert before == "running"
    assert not stopped_early
    assert (await api.store.turn_view(ADA, turn)).state == "aborting"


async def test_abort_of_somebody_else_writes_nothing(api: Api) -> None:
    turn = await api.start(who=EVE)
    before = await api.store.event_page(EVE, turn, after=0)
    await api.http.post(f"/v1/turns/{turn}/abort")
    await api.http.post("/v1/conversations/c1/abort", json={"expected_turn": turn})

    assert await api.store.event_page(EVE, turn, after=0) == before


class Gate:
    """Holds aborts until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.passed = asyncio.Event()


@contextmanager
def held_aborts() -> Iterator[Gate]:
    """Have every abort wait at a gate before it writes anything."""
    gate = Gate()
    abort = TurnClient.abort

    async def held(self: TurnClient, who: Principal, turn: str, **options: Any) -> Aborted:
        gate.reached.set()
        await gate.opened.wait()
        answer = await abort(self, who, turn, **options)
        gate.passed.set()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TurnClient, "abort", held)
        yield gate
