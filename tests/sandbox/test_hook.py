"""HOOK posts what it is sent, each time, and can neither be asked nor told to take it back."""

import asyncio
import hashlib
from typing import Any

import httpx
import pytest

from tests.sandbox.driver import Driver, eventually

CONNECTION_LOST = (httpx.RemoteProtocolError, httpx.ReadError)
OPS = "ops/the deploy is done"


async def _stands(sandbox: Driver) -> bool:
    return await sandbox.counts("hook", OPS) == (1, 1, 0)


async def _messages(sandbox: Driver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await sandbox.http.get("/hook/messages")).json()["messages"]
    return found


async def test_message_is_posted_with_identity_and_key(sandbox: Driver) -> None:
    answer = await sandbox.post("ops", "the deploy is done", key="h1")

    assert (answer.status_code, answer.text) == (200, "ok")
    [message] = await _messages(sandbox)
    assert message.pop("at").endswith("Z")
    assert message == {"channel": "ops", "text": "the deploy is done", "identity": OPS, "key": "h1"}
    effect = await sandbox.effect("hook", OPS)
    assert effect is not None
    assert (effect["standing"], effect["applied"], effect["undone"], effect["keys"]) == (1, 1, 0, ["h1"])
    [call] = await sandbox.calls("hook")
    assert (call["method"], call["path"], call["op"], call["identity"]) == ("POST", "/ops", "apply", OPS)
    assert (call["key"], call["answered"], call["status"]) == ("h1", True, 200)
    assert call["applied_at"] is not None


async def test_key_sent_twice_is_two_messages(sandbox: Driver) -> None:
    for _ in range(2):
        assert (await sandbox.post(key="h1")).text == "ok"

    assert await sandbox.counts("hook", OPS) == (2, 2, 0)
    assert [message["key"] for message in await _messages(sandbox)] == ["h1", "h1"]


async def test_message_without_a_key_or_a_token_is_posted_too(sandbox: Driver) -> None:
    answer = await sandbox.http.post("/hook/ops", json={"text": "the deploy is done", "icon": ":tada:"})

    assert answer.text == "ok"
    effect = await sandbox.effect("hook", OPS)
    assert effect is not None
    assert effect["keys"] == []


@pytest.mark.parametrize(
    ("channel", "path"),
    [
        ("#ops", "%23ops"),
        ("a/b", "a%2Fb"),
        ("Müller 東", "M%C3%BCller%20%E6%9D%B1"),
        ("messages", "messages"),
    ],
)
async def test_channel_is_decoded_from_the_path(sandbox: Driver, channel: str, path: str) -> None:
    answer = await sandbox.http.post(f"/hook/{path}", json={"text": "hello"})

    assert answer.status_code == 200
    assert await sandbox.counts("hook", f"{channel}/hello") == (1, 1, 0)


async def test_long_text_stands_in_the_identity_by_its_digest(sandbox: Driver) -> None:
    whole, long = "é" * 200, "東\n" * 1000
    digest = hashlib.sha256(long.encode("utf-8")).hexdigest()

    await sandbox.post("ops", whole)
    await sandbox.post("ops", long)

    assert [effect["identity"] for effect in (await sandbox.truth())["effects"]] == [
        f"ops/{whole}",
        f"ops/{long[:160]}… sha256:{digest}",
    ]
    assert [message["text"] for message in await _messages(sandbox)] == [whole, long]


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        ({"json": {}}, 400, "no_text"),
        ({"json": {"text": " \n"}}, 400, "no_text"),
        ({"json": {"text": 5}}, 400, "invalid_payload"),
        ({"json": {"text": "x" * 40_001}}, 400, "msg_too_long"),
        ({"json": ["hello"]}, 400, "invalid_payload"),
        ({"content": b""}, 400, "invalid_payload"),
        ({"content": b'{"text": "\\ud800"}'}, 400, "invalid_payload"),
        ({"content": b'{"text": "\xff"}'}, 400, "invalid_payload"),
        ({"json": {"text": "hi"}, "headers": {"Authorization": "Basic YTpi"}}, 401, "invalid_token"),
        ({"json": {"text": "hi"}, "headers": {"Authorization": "Bearer"}}, 401, "invalid_token"),
    ],
)
async def test_message_that_makes_no_sense_is_refused(
    sandbox: Driver, request_: dict[str, Any], status: int, says: str
) -> None:
    answer = await sandbox.http.post("/hook/ops", **request_)

    assert (answer.status_code, answer.text) == (status, says)
    assert (await sandbox.truth())["effects"] == []
    assert [(call["identity"], call["status"]) for call in await sandbox.calls("hook")] == [(None, status)]


@pytest.mark.parametrize("path", ["", "ops/1", "/ops"])
async def test_what_is_no_channel_is_not_found(sandbox: Driver, path: str) -> None:
    answer = await sandbox.http.post(f"/hook/{path}", json={"text": "hi"})

    assert (answer.status_code, answer.text) == (404, "no_service")
    assert (await sandbox.truth())["effects"] == []


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
async def test_there_is_nothing_but_posting(sandbox: Driver, method: str) -> None:
    await sandbox.post()

    answer = await sandbox.http.request(method, "/hook/ops", headers={"Undo-Of": "h1"})

    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert await _stands(sandbox)


async def test_question_uses_no_counter_up(sandbox: Driver) -> None:
    await sandbox.turn("hook", drop_response=1)

    asked = await sandbox.http.get("/hook/ops")
    with pytest.raises(CONNECTION_LOST):
        await sandbox.post()

    assert asked.status_code == 405
    assert [call["op"] for call in await sandbox.calls("hook")] == ["lookup", "apply"]


async def test_dropped_answer_leaves_its_message(sandbox: Driver) -> None:
    await sandbox.turn("hook", drop_response=1)

    with pytest.raises(CONNECTION_LOST):
        await sandbox.post()

    assert await _stands(sandbox)
    assert [(call["answered"], call["status"]) for call in await sandbox.calls("hook")] == [(False, None)]
    await sandbox.post()
    assert await sandbox.counts("hook", OPS) == (2, 2, 0)


@pytest.mark.parametrize(
    ("status", "says"), [(500, "server_error"), (429, "rate_limited"), (403, "request_refused")]
)
@pytest.mark.parametrize("applied", [False, True])
async def test_message_fails_applied_or_not(
    sandbox: Driver, status: int, says: str, *, applied: bool
) -> None:
    await sandbox.turn("hook", fail={"status": status, "times": 1, "applied": applied})

    failed = await sandbox.post(key="h1")
    counts = await sandbox.counts("hook", OPS)
    again = await sandbox.post(key="h2")

    assert (failed.status_code, failed.text) == (status, says)
    assert counts == ((1, 1, 0) if applied else (0, 0, 0))
    assert again.text == "ok"


async def test_slow_answer_holds_no_message_up(sandbox: Driver) -> None:
    await sandbox.turn("hook", latency_ms=60_000)

    with pytest.raises(httpx.ReadTimeout):
        await sandbox.post(patience_s=0.3)

    await eventually(lambda: _stands(sandbox))
    assert [call["answered"] for call in await sandbox.calls("hook")] == [False]


async def test_latency_delays_the_answer(sandbox: Driver) -> None:
    await sandbox.turn("hook", latency_ms=250)
    loop = asyncio.get_running_loop()

    started = loop.time()
    await sandbox.post()

    assert loop.time() - started >= 0.25


async def test_message_lands_after_its_client_has_gone(sandbox: Driver) -> None:
    await sandbox.turn("hook", apply_after_ms=1200)

    with pytest.raises(httpx.ReadTimeout):
        await sandbox.post(patience_s=0.2)

    assert await sandbox.counts("hook", OPS) == (0, 0, 0)
    await eventually(lambda: _stands(sandbox))
    assert [call["answered"] for call in await sandbox.calls("hook")] == [False]


async def test_message_can_land_after_its_failure_was_answered(sandbox: Driver) -> None:
    await sandbox.turn("hook", apply_after_ms=1200, fail={"status": 503, "times": 1, "applied": True})

    failed = await sandbox.post()

    assert failed.status_code == 503
    assert await sandbox.counts("hook", OPS) == (0, 0, 0)
    await eventually(lambda: _stands(sandbox))


@pytest.mark.parametrize(
    ("only", "is_hit"),
    [
        ({"method": "POST"}, True),
        ({"method": "GET"}, False),
        ({"path": "/ops"}, True),
        ({"path": "/hook/o*"}, True),
        ({"path": "/billing"}, False),
        ({"op": "apply"}, True),
        ({"op": "undo"}, False),
        ({"identity": OPS}, True),
        ({"identity": "ops/hello"}, False),
        ({"identity": OPS, "op": "apply", "method": "post", "path": "/ops"}, True),
    ],
)
async def test_only_aims_the_knobs(sandbox: Driver, only: dict[str, str], *, is_hit: bool) -> None:
    await sandbox.turn("hook", fail={"status": 500, "times": 1}, only=only)

    assert (await sandbox.post()).status_code == (500 if is_hit else 200)


async def test_somebody_elses_delete_wipes_the_messages_of_an_identity(sandbox: Driver) -> None:
    for text in ("the deploy is done", "the deploy is done", "hello"):
        await sandbox.post("ops", text)

    first = await sandbox.act(system="hook", op="delete", identity=OPS)
    second = await sandbox.act(system="hook", op="delete", identity=OPS)

    assert (first.status_code, second.status_code) == (200, 404)
    assert await sandbox.counts("hook", OPS) == (0, 2, 0)
    assert [message["identity"] for message in await _messages(sandbox)] == ["ops/hello"]
    assert await sandbox.counts("hook", "ops/hello") == (1, 1, 0)
