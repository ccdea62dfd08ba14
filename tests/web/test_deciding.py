"""Confirm and reject over HTTP: the first answer counts, and every other one is told what it met."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.stack import eventually
from tests.web.served import ADA, EVE, Api, assert_problem, identity
from turnsaga.store import EffectRow


async def shown(api: Api, effect: str) -> dict[str, Any]:
    found: dict[str, Any] = (await api.http.get(f"/v1/effects/{effect}")).json()
    return found


def answer_to(view: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"version": view["version"], "digest": view["digest"], **other}


async def decide(api: Api, effect: str, what: str, body: object, **headers: str) -> httpx.Response:
    return await api.http.post(f"/v1/effects/{effect}/{what}", content=json.dumps(body), headers=headers)


async def goes_on(api: Api, turn: str, effect: str) -> None:
    """Open the gate of a confirmed effect, as its worker would."""

    async def confirmed() -> EffectRow | None:
        row = await api.store.load_effect(api.ref(ADA, turn, effect))
        return row if row.held_for is None else None

    row = await eventually(confirmed, what="the answer is recorded")
    claim = await api.store.claim_commit(api.call(row), None)
    assert claim.row is not None


async def test_held_effect_says_what_an_answer_must_name(api: Api) -> None:
    view = await shown(api, await api.hold(await api.start()))

    assert (view["state"], view["held_for"], view["version"]) == ("prepared", "confirmation", 1)
    assert view["digest"]
    expires_at = datetime.fromisoformat(view["expires_at"])
    assert timedelta(0) < expires_at - datetime.now(UTC) <= timedelta(minutes=1)


async def test_confirmation_is_answered_once_the_gate_has_opened(api: Api) -> None:
    turn = await api.start()
    effect = await api.hold(turn)
    body = answer_to(await shown(api, effect))
    first, _ = await asyncio.gather(decide(api, effect, "confirm", body), goes_on(api, turn, effect))
    again = await decide(api, effect, "confirm", body)
    other = await decide(api, effect, "reject", body)

    assert (first.status_code, first.json()["state"]) == (202, "committing")
    assert (again.status_code, again.json()["state"]) == (200, "committing")
    assert_problem(other, 409, "already_decided", effect=effect)
    assert set(api.temporal.signalled) == {turn}


async def test_rejection_releases_at_once(api: Api) -> None:
    effect = await api.hold(await api.start())
    body = answer_to(await shown(api, effect))
    first = await decide(api, effect, "reject", body)
    again = await decide(api, effect, "reject", body)
    other = await decide(api, effect, "confirm", body)

    assert (first.status_code, first.json()["state"]) == (202, "released")
    assert first.json()["error"].startswith("rejected")
    assert (again.status_code, again.json()) == (200, first.json())
    assert_problem(other, 409, "already_decided", effect=effect)


async def test_abort_between_an_answer_and_the_gate_is_what_the_answer_tells(api: Api) -> None:
    turn = await api.start()
    effect = await api.hold(turn)
    body = answer_to(await shown(api, effect))
    confirming = asyncio.create_task(decide(api, effect, "confirm", body))
    await eventually(lambda: api.temporal.signalled, what="the answer is recorded")
    stopped = await api.http.post(f"/v1/turns/{turn}/abort")
    confirmed = await confirming

    assert stopped.status_code == 202
    assert_problem(confirmed, 409, "turn_aborted", effect=effect)
    assert (await shown(api, effect))["state"] == "released"


@pytest.mark.parametrize("what", ["confirm", "reject"])
async def test_late_answers_say_what_they_met(api: Api, what: str) -> None:
    turn = await api.start()
    held, committed = await api.hold(turn), await api.commit(turn)
    body = answer_to(await shown(api, held))
    changed = [
        await decide(api, held, what, {**body, "version": body["version"] + 1}),
        await decide(api, held, what, {**body, "digest": "x"}),
    ]
    not_held = await decide(api, committed, what, answer_to(await shown(api, committed)))
    await api.fence(turn)
    aborted = await decide(api, held, what, body)

    for problem in changed:
        assert_problem(problem, 409, "changed", effect=held)
    assert_problem(not_held, 409, "not_held", effect=committed)
    assert_problem(aborted, 409, "turn_aborted", effect=held)


@pytest.mark.parametrize("what", ["confirm", "reject"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        None,
        "no",
        [],
        {"approved": "false"},
        {"version": "1", "digest": "d"},
        {"version": True, "digest": "d"},
        {"version": 1},
        {"version": 1, "digest": ""},
        {"version": 1, "digest": "d", "confirmed": True},
    ],
    ids=str,
)
async def test_garbage_is_no_answer(api: Api, what: str, body: object) -> None:
    effect = await api.hold(await api.start())
    answer = await decide(api, effect, what, body)

    assert_problem(answer, 422, "invalid_request")
    assert (await shown(api, effect))["held_for"] == "confirmation"


async def test_body_without_an_end_is_no_answer(api: Api) -> None:
    effect = await api.hold(await api.start())
    for raw, status in (("", 400), ("{", 400), ("x" * 2_000_000, 413)):
        answer = await api.http.post(f"/v1/effects/{effect}/confirm", content=raw)
        assert answer.status_code == status
    assert (await shown(api, effect))["version"] == 1


async def test_somebody_else_s_answer_finds_nothing(api: Api) -> None:
    effect = await api.hold(await api.start())
    body = answer_to(await shown(api, effect))
    for what in ("confirm", "reject"):
        assert_problem(await decide(api, effect, what, body, **identity(EVE)), 404, "not_found")

    assert (await shown(api, effect))["held_for"] == "confirmation"


async def test_answer_holds_while_temporal_is_away(api: Api) -> None:
    effect = await api.hold(await api.start())
    body = answer_to(await shown(api, effect))
    api.temporal.away = True
    first = await decide(api, effect, "confirm", body)

    assert first.status_code == 202
    assert (first.json()["state"], first.json()["held_for"]) == ("prepared", None)
