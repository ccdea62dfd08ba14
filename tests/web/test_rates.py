"""How often a user may ask, in production: by bearer tokens, over sockets."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.stack import eventually
from tests.web.issuer import AUDIENCE, ISSUER, bearer, key_set, token
from tests.web.served import Api, api_over, assert_problem, served, settings_of
from turnsaga.models import Principal
from web.problems import Problem
from web.rates import Kind, Rates

ADA = bearer(token())
EVE = bearer(token(sub="eve"))
STRANGER = bearer(token(tenant="other"))
NEVER_LIMITED = {
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/turns/{turn}/abort",
    "/v1/conversations/{conversation}/abort",
}
_keys = itertools.count(1)


@asynccontextmanager
async def limited(
    folder: Path, *, env: str = "production", **limits: int
) -> AsyncIterator[tuple[Api, httpx.AsyncClient]]:
    """Serve a web tier with these limits, and a client that says by itself of nobody who it is."""
    settings = settings_of(
        env=env,
        model="test:model",
        jwt_issuer=ISSUER,
        jwt_audience=AUDIENCE,
        jwt_keys=json.dumps(key_set("r")),
        **limits,
    )
    async with (
        api_over(folder, settings=settings) as api,
        served(api) as tier,
        httpx.AsyncClient(base_url=tier.url, timeout=10) as http,
    ):
        yield api, http


async def start(
    http: httpx.AsyncClient, who: dict[str, str], conversation: str | None = None
) -> httpx.Response:
    number = next(_keys)
    return await http.post(
        f"/v1/conversations/{conversation or f'c{number}'}/turns",
        json={"message": "hello"},
        headers={**who, "Idempotency-Key": f"k{number}"},
    )


async def test_starts_beyond_the_rate_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    async with limited(tmp_path, starts_per_min=3) as (api, http):
        taken = [await start(http, ADA) for _ in range(3)]
        refused = await start(http, ADA, "refused")
        written = await api.store.latest_turn(Principal(tenant="acme", user="ada"), "refused")

    assert [answer.status_code for answer in taken] == [201] * 3
    problem = assert_problem(refused, 429, "rate_limited", kind="starts", per_minute=3)
    assert refused.headers["retry-after"] == "20"
    assert "ask again in 20 s" in problem["detail"]
    assert written is None
    assert len(api.temporal.started) == 3


async def test_each_user_and_each_kind_has_a_bucket_of_its_own(tmp_path: Path) -> None:
    async with limited(tmp_path, starts_per_min=1, writes_per_min=1, reads_per_min=1) as (_, http):
        first, again = await start(http, ADA), await start(http, ADA)
        turn = first.json()["turn"]
        others = [await start(http, who) for who in (EVE, STRANGER)]
        reads = [await http.get(f"/v1/turns/{turn}", headers=ADA) for _ in range(2)]
        writes = [await http.post("/v1/effects/eff_1/acknowledge", headers=ADA) for _ in range(2)]

    assert (first.status_code, again.status_code) == (201, 429)
    assert [answer.status_code for answer in others] == [201, 201]
    assert [answer.status_code for answer in reads] == [200, 429]
    assert [answer.status_code for answer in writes] == [404, 429]


async def test_streams_count_as_reads_when_they_are_opened(tmp_path: Path) -> None:
    async with limited(tmp_path, reads_per_min=2) as (api, http):
        turn = (await start(http, ADA)).json()["turn"]
        where = f"/v1/turns/{turn}/events"
        async with http.stream("GET", where, headers=ADA) as opened:
            lines = opened.aiter_lines()
            head = await anext(lines)
            seen = await http.get(f"/v1/turns/{turn}", headers=ADA)
            refused = await http.get(where, headers=ADA)
            await http.post(f"/v1/turns/{turn}/abort", headers=ADA)
            await api.settle(turn)
            rest = [line async for line in lines]

    assert (opened.status_code, head, seen.status_code) == (200, "id: 1", 200)
    assert_problem(refused, 429, "rate_limited", kind="reads")
    assert "event: turn_settled" in rest, "one that is open goes on"


async def test_whoever_has_used_up_everything_can_still_stop(tmp_path: Path) -> None:
    async with limited(tmp_path, starts_per_min=1, writes_per_min=1, reads_per_min=1) as (_, http):
        turn = (await start(http, ADA, "c")).json()["turn"]
        for _ in range(3):
            await start(http, ADA)
            await http.get(f"/v1/turns/{turn}", headers=ADA)
            await http.post("/v1/effects/eff_1/acknowledge", headers=ADA)
        stops = [await http.post(f"/v1/turns/{turn}/abort", headers=ADA) for _ in range(20)]
        by_conversation = await http.post("/v1/conversations/c/abort", headers=ADA)

    assert [answer.status_code for answer in stops] == [202] + [200] * 19
    assert by_conversation.status_code == 200


async def test_bucket_fills_again_within_what_retry_after_says(tmp_path: Path) -> None:
    async with limited(tmp_path, reads_per_min=60) as (_, http):
        answers = [await http.get("/v1/effects", headers=ADA) for _ in range(70)]
        refused = next(answer for answer in answers if answer.status_code == 429)

        async def let_through() -> bool:
            return (await http.get("/v1/effects", headers=ADA)).status_code == 200

        await eventually(let_through, within=int(refused.headers["retry-after"]) + 1, what="a free request")

    assert refused.headers["retry-after"] == "1"


async def test_wrong_token_costs_nobody_anything(tmp_path: Path) -> None:
    async with limited(tmp_path, reads_per_min=1) as (_, http):
        wrong = [await http.get("/v1/effects", headers=bearer("a.b.c")) for _ in range(3)]
        own = await http.get("/v1/effects", headers=ADA)

    assert [answer.status_code for answer in wrong] == [401] * 3
    assert own.status_code == 200


@pytest.mark.parametrize(("env", "limit"), [("development", 1), ("production", 0)])
async def test_there_is_no_limit_in_development_or_by_zero(tmp_path: Path, env: str, limit: int) -> None:
    async with limited(tmp_path, env=env, reads_per_min=limit) as (_, http):
        answers = [await http.get("/v1/effects", headers=ADA) for _ in range(5)]

    assert [answer.status_code for answer in answers] == [200] * 5


async def test_every_route_is_counted_but_the_probes_and_the_aborts(tmp_path: Path) -> None:
    """A new route whose caller isn't counted would be a way around the limits."""
    async with limited(tmp_path, starts_per_min=1, writes_per_min=1, reads_per_min=1) as (api, http):
        await start(http, ADA)
        await http.get("/v1/effects", headers=ADA)
        await http.post("/v1/effects/eff_1/acknowledge", headers=ADA)
        routes: dict[str, dict[str, Any]] = api.app.openapi()["paths"]
        free: set[str] = set()
        for path, methods in routes.items():
            for method in methods:
                answer = await http.request(method, path.replace("{", "").replace("}", ""), headers=ADA)
                if answer.status_code != 429:
                    free.add(path)

    assert free == NEVER_LIMITED
    assert len(routes) > len(NEVER_LIMITED)


async def test_buckets_are_kept_for_so_many_users_and_no_more() -> None:
    rates = Rates(settings_of(env="production", reads_per_min=1), users=3)
    names = [Principal(tenant="acme", user=f"u{number}") for number in range(100)]
    for who in names:
        await rates.take(who, Kind.READS)
    kept = rates.users

    with pytest.raises(Problem, match="used up"):
        await rates.take(names[-1], Kind.READS)
    await rates.take(names[0], Kind.READS)
    assert kept == 3
