"""What holds for every route: who asks, under which name, how much, and what an error looks like."""

from collections.abc import AsyncIterator

import httpx
import pytest
import structlog

from tests.web.served import Api, assert_problem, served
from web.guard import MAX_BODY_BYTES
from web.identity import HEADER


@pytest.mark.parametrize(
    "given",
    [
        [],
        [""],
        ["acme"],
        ["acme/"],
        ["/ada"],
        ["acme/ada/"],
        ["acme/ada/admin"],
        ["acme/ada/user/more"],
        ["acme /ada"],
        ["acme/a da"],
        ["acme/ada\u00e9"],
        ["acme/" + "a" * 101],
        ["a" * 101 + "/ada"],
        ["acme/ada", "acme/eve"],
        ["acme/ada, acme/eve"],
    ],
    ids=range(15),
)
async def test_request_that_does_not_say_who_acts_is_told_how(api: Api, given: list[str]) -> None:
    turn = await api.start()
    request = api.http.build_request("GET", f"/v1/turns/{turn}")
    del request.headers[HEADER]
    request.headers = httpx.Headers(
        [*request.headers.raw, *((HEADER.encode(), value.encode("latin-1")) for value in given)]
    )
    answer = await api.http.send(request)

    problem = assert_problem(answer, 401, "unauthenticated")
    assert f"{HEADER}: tenant/user" in problem["detail"]
    assert "www-authenticate" in answer.headers


@pytest.mark.parametrize("given", ["acme/ada", "acme/ada/user", "acme/ada/service", "acme/ada/operator"])
async def test_role_is_optional_and_every_role_acts_on_its_own_things(api: Api, given: str) -> None:
    turn = await api.start()

    assert (await api.http.get(f"/v1/turns/{turn}", headers={HEADER: given})).status_code == 200


async def test_names_of_the_longest_length_are_taken(api: Api) -> None:
    headers = {HEADER: f"{'t' * 100}/{'u' * 100}/operator", "Idempotency-Key": "k" * 200}
    answer = await api.http.post(
        f"/v1/conversations/{'c' * 200}/turns", json={"message": "a"}, headers=headers
    )
    stopped = await api.http.post(f"{answer.json()['links']['abort']}", headers=headers)

    assert (answer.status_code, stopped.status_code) == (201, 202)


async def test_who_acts_is_asked_before_anything_else(api: Api) -> None:
    request = api.http.build_request("POST", "/v1/conversations/c1/turns", content=b"{")
    del request.headers[HEADER]

    assert_problem(await api.http.send(request), 401, "unauthenticated")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LocalHost:1", "[::1]", "[::1]:65535"]
)
async def test_names_of_loopback_are_served(api: Api, host: str) -> None:
    assert (await api.http.get("/healthz", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1:80:80",
        "127.0.0.1:",
        "127.0.0.2",
        "10.0.0.1",
        "0.0.0.0",
        "::1",
        "",
        "localhost\n",
    ],
)
@pytest.mark.parametrize("path", ["/healthz", "/v1/effects", "/nothing"])
async def test_other_host_names_are_refused(api: Api, host: str, path: str) -> None:
    """A page of another site can have its name resolve to 127.0.0.1, and would then be same-origin."""
    assert_problem(await api.http.get(path, headers={"Host": host}), 403, "forbidden_host")


async def test_foreign_host_starts_nothing(api: Api) -> None:
    answer = await api.http.post(
        "/v1/conversations/c1/turns",
        json={"message": "a"},
        headers={"Host": "evil.example", "Idempotency-Key": "k"},
    )

    assert_problem(answer, 403, "forbidden_host")
    assert api.temporal.started == []


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
async def test_body_that_is_too_large_is_refused(api: Api, declared: bool) -> None:  # noqa: FBT001
    size = MAX_BODY_BYTES + 1
    async with served(api) as tier, tier.http() as http:
        content = b"a" * size if declared else chunks(size)
        answer = await http.post(
            "/v1/conversations/c1/turns", content=content, headers={"Idempotency-Key": "k"}
        )
        after = await http.get("/healthz")

    assert_problem(answer, 413, "too_large")
    assert after.status_code == 200


async def test_body_that_is_declared_too_large_is_not_read(api: Api) -> None:
    """The route reads no body, so that only the declaration can tell."""
    answer = await api.http.post("/v1/effects/e/acknowledge", content=b"a" * (MAX_BODY_BYTES + 1))

    assert_problem(answer, 413, "too_large")


async def test_body_of_the_largest_size_is_read(api: Api) -> None:
    turn = await api.start()
    answer = await api.http.post(f"/v1/turns/{turn}/abort", content=chunks(MAX_BODY_BYTES, b" "))

    assert answer.status_code == 202


async def chunks(size: int, fill: bytes = b"a") -> AsyncIterator[bytes]:
    while size > 0:
        yield fill * min(size, 64 * 1024)
        size -= 64 * 1024


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/turns/{}"),
        ("GET", "/v1/effects/{}"),
        ("POST", "/v1/turns/{}/abort"),
        ("POST", "/v1/conversations/{}/turns"),
        ("GET", "/v1/effects/by-key/{}"),
    ],
)
async def test_id_that_is_too_long_is_refused(api: Api, method: str, path: str) -> None:
    answer = await api.http.request(method, path.format("x" * 201), headers={"Idempotency-Key": "k"})

    assert_problem(answer, 422, "invalid_request", field="path")
    assert len(answer.content) < 500


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/nothing",
        "/v1/turns",
        "/v1/turns/t/",
        "/v1/turns/t/nothing",
        "/v1/conversations/c/events",
        "/v1/effects/e/undo",
        "/docs",
        "/redoc",
        "/openapi.json",
    ],
)
async def test_route_that_does_not_exist_is_not_found(api: Api, path: str) -> None:
    assert_problem(await api.http.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/turns/t", "GET"),
        ("GET", "/v1/turns/t/abort", "POST"),
        ("PUT", "/healthz", "GET"),
        ("POST", "/v1/turns/t/events", "GET"),
    ],
)
async def test_wrong_method_is_told_the_right_one(api: Api, method: str, path: str, allowed: str) -> None:
    answer = await api.http.request(method, path)

    assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


async def test_what_was_not_foreseen_is_logged_and_tells_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_arguments: object) -> None:
        raise ValueError("password=hunter2")

    monkeypatch.setattr(api.store, "effect_view", fail)
    with structlog.testing.capture_logs() as lines:
        answer = await api.http.get("/v1/effects/eff_1")

    assert_problem(answer, 500, "internal")
    assert "hunter2" not in answer.text
    assert "ValueError" not in answer.text
    failed = [line for line in lines if line["event"] == "web.failed"]
    assert [(line["log_level"], line["path"]) for line in failed] == [("error", "/v1/effects/eff_1")]


async def test_every_request_has_its_line_without_its_query(api: Api) -> None:
    with structlog.testing.capture_logs() as lines:
        await api.http.get("/v1/effects?outstanding=true")

    assert [
        (line["method"], line["path"], line["status"]) for line in lines if line["event"] == "web.request"
    ] == [("GET", "/v1/effects", 200)]


async def test_ready_when_ledger_and_temporal_answer(api: Api) -> None:
    answer = await api.http.get("/readyz", headers={HEADER: ""})

    assert (answer.status_code, answer.json()) == (200, {"ledger": "ok", "temporal": "ok"})


async def test_not_ready_names_what_does_not_answer(api: Api) -> None:
    api.temporal.away = True
    answer = await api.http.get("/readyz")

    problem = assert_problem(answer, 503, "not_ready", ledger="ok", temporal="doesn't answer")
    assert "temporal" in problem["detail"]
    assert "ledger" not in problem["detail"]
    assert (await api.http.get("/healthz")).status_code == 200


async def test_not_ready_without_the_ledger(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent() -> None:
        raise TimeoutError

    monkeypatch.setattr(api.store, "engine", silent)

    answer = await api.http.get("/readyz")

    assert_problem(answer, 503, "not_ready", ledger="doesn't answer", temporal="ok")
