"""Starting a turn: what is taken, what is refused, and that a refusal writes nothing."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.served import ADA, EVE, Api, api_over, assert_problem, identity, settings_of
from turnsaga.client import MAX_MESSAGE
from turnsaga.errors import StoreUnavailable
from web.identity import DevelopmentIdentity

TURNS = "/v1/conversations/c1/turns"


async def post(api: Api, body: Any, *, key: str = "k1", path: str = TURNS, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await api.http.post(path, content=content, headers={"Idempotency-Key": key, **headers})


async def test_new_turn_is_created_and_its_workflow_started(api: Api) -> None:
    answer = await post(api, {"message": "hello"})

    assert answer.status_code == 201
    turn = answer.json()["turn"]
    assert answer.json() == {
        "turn": turn,
        "state": "running",
        "links": {
            "self": f"/v1/turns/{turn}",
            "events": f"/v1/turns/{turn}/events",
            "abort": f"/v1/turns/{turn}/abort",
        },
    }
    assert answer.headers["location"] == f"/v1/turns/{turn}"
    assert answer.headers["cache-control"] == "no-store"
    assert api.temporal.started == [turn]
    assert await api.store.active_turn(ADA, "c1") == turn


async def test_every_link_of_a_started_turn_answers(api: Api) -> None:
    links = (await post(api, {"message": "hello"})).json()["links"]
    stopped = await api.http.post(links["abort"])
    await api.settle(stopped.json()["turn"])

    assert stopped.status_code == 202
    assert (await api.http.get(links["self"])).status_code == 200
    assert (await api.http.get(links["events"])).status_code == 200


async def test_same_key_and_body_is_the_same_turn(api: Api) -> None:
    first = await post(api, {"message": "hello"})
    again = await post(api, {"message": "hello"})

    assert again.status_code == 200
    assert again.json() == first.json()


async def test_same_key_with_other_body_is_a_conflict(api: Api) -> None:
    turn = (await post(api, {"message": "hello"})).json()["turn"]

    assert_problem(await post(api, {"message": "bye"}), 422, "idempotency_conflict", turn=turn)


async def test_second_turn_is_refused_while_one_runs(api: Api) -> None:
    turn = (await post(api, {"message": "hello"})).json()["turn"]

    assert_problem(await post(api, {"message": "hello"}, key="k2"), 409, "turn_in_progress", turn=turn)
    assert api.temporal.started == [turn]


async def test_conversation_of_that_name_is_another_one_for_another_user(api: Api) -> None:
    mine = await post(api, {"message": "hello"})
    theirs = await post(api, {"message": "hello"}, **identity(EVE))

    assert theirs.status_code == 201
    assert theirs.json()["turn"] != mine.json()["turn"]


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": ""}, {"Idempotency-Key": "  "}])
async def test_start_without_key_is_refused(api: Api, headers: dict[str, str]) -> None:
    answer = await api.http.post(TURNS, json={"message": "hello"}, headers=headers)

    assert_problem(answer, 400, "idempotency_key_missing")
    assert await api.store.active_turn(ADA, "c1") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"message": "hello"',
        b"\xff\xfe",
        b'{"message": "\xff"}',
        b'{"message": "\\ud800"}',
        b"[" * 100_000,
        b'{"message": nope}',
    ],
    ids=range(8),
)
async def test_body_that_is_not_json_is_refused(api: Api, body: bytes) -> None:
    assert_problem(await post(api, body), 400, "malformed_json")
    assert await api.store.active_turn(ADA, "c1") is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ("hello", "body"),
        ({}, "message"),
        ({"message": 1}, "message"),
        ({"message": {"script": []}}, "message"),
        ({"message": ""}, "message"),
        ({"message": "a" * (MAX_MESSAGE + 1)}, "message"),
        ({"message": "a", "mesage": "b"}, "mesage"),
        ({"message": "a", "model": 1}, "model"),
        ({"message": "a", "model": "gpt-unheard-of"}, "model"),
        ({"message": "a", "policies": []}, "policies"),
        ({"message": "a", "policies": {"send_mail": 1}}, "policies.send_mail"),
        ({"message": "a", "policies": {f"t{n}": "off" for n in range(101)}}, "policies"),
        ({"message": "a", "deadline_ms": "1000"}, "deadline_ms"),
        ({"message": "a", "deadline_ms": True}, "deadline_ms"),
        ({"message": "a", "deadline_ms": 0}, "deadline_ms"),
        ({"message": "a", "deadline_ms": 10**30}, "deadline_ms"),
        ({"message": "a", "on_busy": "nonsense"}, "on_busy"),
        ({"message": "a", "on_busy": None}, "on_busy"),
        ({"message": "a", "on_disconnect": "nonsense"}, "on_disconnect"),
    ],
    ids=range(20),
)
async def test_wrong_field_is_named(api: Api, body: Any, field: str) -> None:
    problem = assert_problem(await post(api, body), 422, "invalid_request", field=field)
    assert field in problem["detail"]
    assert await api.store.active_turn(ADA, "c1") is None


async def test_every_wrong_field_is_told(api: Api) -> None:
    problem = assert_problem(await post(api, {"message": 1, "extra": 2}), 422, "invalid_request")

    assert "message" in problem["detail"]
    assert "extra" in problem["detail"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("on_disconnect", "hold"), ("on_disconnect", "abort")],
)
async def test_choice_of_a_later_version_is_refused_by_name(api: Api, field: str, value: str) -> None:
    problem = assert_problem(await post(api, {"message": "a", field: value}), 422, "unsupported", field=field)

    assert value in problem["detail"]
    assert "comes with a later version" in problem["detail"]
    assert await api.store.active_turn(ADA, "c1") is None


async def test_turn_that_runs_is_waited_for_or_stopped_as_asked(api: Api) -> None:
    first = await api.start("c1")
    refused = await post(api, {"message": "a"}, **{"Idempotency-Key": "refused"})
    queued = await post(api, {"message": "b", "on_busy": "queue"}, **{"Idempotency-Key": "queued"})
    again = await post(api, {"message": "b", "on_busy": "queue"}, **{"Idempotency-Key": "queued"})
    other = await post(api, {"message": "b"}, **{"Idempotency-Key": "queued"})
    aborts = await post(api, {"message": "c", "on_busy": "abort"}, **{"Idempotency-Key": "aborts"})
    views = [
        (await api.http.get(f"/v1/turns/{turn}")).json()
        for turn in (first, queued.json()["turn"], aborts.json()["turn"])
    ]

    assert_problem(refused, 409, "turn_in_progress", turn=first)
    assert (queued.status_code, queued.json()["state"]) == (201, "queued")
    assert (again.status_code, again.json()) == (200, queued.json())
    assert_problem(other, 422, "idempotency_conflict", turn=queued.json()["turn"])
    assert aborts.status_code == 201
    assert [view["state"] for view in views] == ["aborting", "queued", "queued"]
    assert views[1]["settlement"] is None
    assert api.temporal.signalled == [first]


async def test_choices_and_null_that_mean_the_default_are_taken(api: Api) -> None:
    body = {"message": "a", "on_busy": "refuse", "on_disconnect": "continue", "model": None, "policies": None}

    assert (await post(api, {**body, "deadline_ms": 1000})).status_code == 201


async def test_body_is_json_whatever_its_content_type_says(api: Api) -> None:
    answer = await post(api, {"message": "a"}, **{"Content-Type": "application/x-www-form-urlencoded"})

    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("policies", "tool"),
    [
        ({"send_mail": "immediate"}, "send_mail"),
        ({"send_mail": "whenever"}, "send_mail"),
        ({"send_mail": "confirmed+25h"}, "send_mail"),
        ({"send_mail": "off+1s"}, "send_mail"),
        ({"find": "off"}, "find"),
        ({"unheard_of": "immediate!"}, "unheard_of"),
    ],
)
async def test_policy_that_is_not_available_is_refused(api: Api, policies: dict[str, str], tool: str) -> None:
    answer = await post(api, {"message": "a", "policies": policies})

    assert_problem(answer, 422, "policy_refused", tool=tool, policy=policies[tool])
    assert await api.store.active_turn(ADA, "c1") is None


async def test_policy_that_is_available_is_taken(api: Api) -> None:
    answer = await post(api, {"message": "a", "policies": {"send_mail": "immediate!"}})

    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("env", "configured", "wished", "status"),
    [
        ("development", "script", None, 201),
        ("development", "script", "script", 201),
        ("development", "vendor:large", "script", 201),
        ("development", "vendor:large", "vendor:large", 201),
        ("development", "vendor:large", None, 201),
        ("development", "vendor:large", "vendor:small", 422),
        ("production", "vendor:large", "vendor:large", 201),
        ("production", "vendor:large", "script", 422),
        ("production", "script", None, 422),
        ("production", "script", "script", 422),
    ],
)
async def test_models_are_those_of_the_settings(
    tmp_path: Path, env: str, configured: str, wished: str | None, status: int
) -> None:
    settings = settings_of(env=env, model=configured)
    async with api_over(tmp_path, settings=settings, identity_by=DevelopmentIdentity()) as api:
        answer = await post(api, {"message": "a", "model": wished})

        assert answer.status_code == status
        if status == 422:
            assert_problem(answer, 422, "invalid_request", field="model")


@pytest.mark.parametrize("conversation", ["caf\u00e9 1", "a?b#c", "..;x", "%25", "\u4f1a\u8bdd"])
async def test_conversation_may_hold_anything_printable(api: Api, conversation: str) -> None:
    path = f"/v1/conversations/{httpx.QueryParams({'': conversation})}"
    quoted = str(path).replace("?", "").replace("/=", "/").replace("+", "%20")

    answer = await post(api, {"message": "a"}, path=f"{quoted}/turns")

    assert answer.status_code == 201
    assert (await api.http.get(answer.headers["location"])).json()["conversation"] == conversation


@pytest.mark.parametrize(
    ("path", "key", "field"),
    [
        ("/v1/conversations/a%00b/turns", "k", "conversation"),
        ("/v1/conversations/a%0Ab/turns", "k", "conversation"),
        (TURNS, "k" * 201, "Idempotency-Key"),
    ],
)
async def test_name_that_can_not_be_stored_is_refused(api: Api, path: str, key: str, field: str) -> None:
    assert_problem(await post(api, {"message": "a"}, path=path, key=key), 422, "invalid_request", field=field)


async def test_encoded_slash_is_another_address(api: Api) -> None:
    answer = await post(api, {"message": "a"}, path="/v1/conversations/a%2Fb/turns")

    assert_problem(answer, 404, "not_found")


async def test_start_while_temporal_is_away_is_recorded_and_can_be_asked_again(api: Api) -> None:
    api.temporal.away = True
    answer = await post(api, {"message": "hello"})
    turn = answer.json()["turn"]
    seen = await api.http.get(f"/v1/turns/{turn}")
    api.temporal.away = False
    again = await post(api, {"message": "hello"})

    problem = assert_problem(answer, 503, "engine_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert "temporal.test" not in problem["detail"]
    assert seen.json()["state"] == "running"
    assert (again.status_code, again.json()["turn"]) == (200, turn)
    assert api.temporal.started == [turn]


async def test_start_while_the_ledger_is_away_says_when_to_ask_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_arguments: object) -> None:
        raise StoreUnavailable("sqlite:////var/ledger.db", "locked")

    monkeypatch.setattr(api.store, "start_turn", silent)
    answer = await post(api, {"message": "hello"})

    problem = assert_problem(answer, 503, "ledger_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert "/var" not in problem["detail"]
    assert api.temporal.started == []
