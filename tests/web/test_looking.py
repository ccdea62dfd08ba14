"""Looking at a turn, and waiting for its end."""

import asyncio

import httpx
import pytest

from tests.web.served import Api, assert_problem


async def test_turn_is_shown_as_the_ledger_has_it(api: Api) -> None:
    turn = await api.start("c1")
    effect = await api.commit(turn)
    running = (await api.http.get(f"/v1/turns/{turn}")).json()
    await api.complete(turn)
    ended = (await api.http.get(f"/v1/turns/{turn}")).json()

    assert set(running) == {"turn", "conversation", "state", "reason", "effects", "settlement"}
    assert (running["turn"], running["conversation"], running["state"]) == (turn, "c1", "running")
    assert running["settlement"] is None
    assert [(shown["effect"], shown["state"]) for shown in running["effects"]] == [(effect, "committed")]
    assert ended["state"] == "completed"
    assert ended["settlement"]["committed"] == [effect]


async def test_wait_answers_when_the_turn_ends(api: Api) -> None:
    turn = await api.start()
    waiting = asyncio.create_task(wait(api, turn, "30"))
    await asyncio.wait({waiting}, timeout=0.2)
    waited = not waiting.done()
    await api.complete(turn)

    async with asyncio.timeout(5):
        assert (await waiting).json()["state"] == "completed"
    assert waited


@pytest.mark.parametrize("seconds", ["0", "0.1", "0.7"])
async def test_wait_answers_the_present_state_when_its_time_is_over(api: Api, seconds: str) -> None:
    turn = await api.start()

    async with asyncio.timeout(float(seconds) + 4):
        answer = await wait(api, turn, seconds)

    assert (answer.status_code, answer.json()["state"]) == (200, "running")


async def test_wait_ends_when_the_server_stops(api: Api) -> None:
    turn = await api.start()
    waiting = asyncio.create_task(wait(api, turn, "60"))
    await asyncio.wait({waiting}, timeout=0.1)
    api.stopping.set()

    async with asyncio.timeout(3):
        assert (await waiting).json()["state"] == "running"


async def test_longer_wait_than_the_longest_is_taken_as_that(api: Api) -> None:
    turn = await api.start()
    await api.complete(turn)

    assert (await wait(api, turn, "100000")).status_code == 200


@pytest.mark.parametrize("seconds", ["-1", "soon", "nan", "inf", ""])
async def test_wait_of_no_length_is_refused(api: Api, seconds: str) -> None:
    turn = await api.start()

    assert_problem(await wait(api, turn, seconds), 422, "invalid_request", field="timeout")


async def test_wait_for_anything_else_is_refused(api: Api) -> None:
    turn = await api.start()
    answer = await api.http.get(f"/v1/turns/{turn}", params={"wait": "committed"})

    assert_problem(answer, 422, "invalid_request", field="wait")


async def wait(api: Api, turn: str, seconds: str) -> httpx.Response:
    return await api.http.get(f"/v1/turns/{turn}", params={"wait": "settled", "timeout": seconds})
