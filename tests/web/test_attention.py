"""The queue of what needs a person, and their word, over HTTP: for operators, within their tenant."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.web.issuer import AUDIENCE, ISSUER, bearer, key_set, token
from tests.web.served import ADA, EVE, STRANGER, Api, api_over, assert_problem, identity, settings_of
from turnsaga.errors import StoreUnavailable
from turnsaga.models import Principal
from turnsaga.store import EffectRow
from web.identity import HEADER, OPERATOR

GRACE = Principal(tenant="acme", user="grace", role="operator")
FOREIGN = STRANGER.model_copy(update={"role": OPERATOR})
LOOKED = {"as": "applied", "note": "it is in the outbox"}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Api]:
    """Run the app with bearer tokens."""
    settings = settings_of(jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_keys=json.dumps(key_set("r")))
    async with api_over(tmp_path, settings=settings) as api:
        yield api


async def resolve(api: Api, effect: str, body: object, who: Principal = GRACE) -> httpx.Response:
    return await api.http.post(
        f"/v1/effects/{effect}/resolve", content=json.dumps(body), headers=identity(who)
    )


async def queue(api: Api, who: Principal = GRACE) -> list[str]:
    answer = await api.http.get("/v1/attention", headers=identity(who))
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"effects"}
    return [effect["effect"] for effect in answer.json()["effects"]]


async def test_operator_sees_what_waits_in_the_tenant_oldest_first(api: Api) -> None:
    effects = [await api.doubt(await api.start(who=who), who=who) for who in (ADA, EVE)]
    effects.append(await api.stuck("c2"))
    await api.doubt(await api.start(who=STRANGER), who=STRANGER)
    await api.standing("c3")

    assert await queue(api) == effects
    assert len(await queue(api, FOREIGN)) == 1
    shown = (await api.http.get("/v1/attention", headers=identity(GRACE))).json()["effects"][0]
    assert shown == (await api.http.get(f"/v1/effects/{effects[0]}")).json()


@pytest.mark.parametrize("role", ["user", "service", None])
async def test_others_are_refused_before_anything_else(guarded: Api, role: str | None) -> None:
    del guarded.http.headers[HEADER]
    headers = bearer(token(role=role))
    answers = [
        await guarded.http.get("/v1/attention", headers=headers),
        await guarded.http.post("/v1/effects/eff_1/resolve", content="nonsense", headers=headers),
    ]
    may = await guarded.http.get("/v1/attention", headers=bearer(token(role=OPERATOR)))

    for answer in answers:
        assert_problem(answer, 403, "forbidden", role=OPERATOR)
    assert (may.status_code, may.json()) == (200, {"effects": []})


@pytest.mark.parametrize("role", ["user", "service"])
async def test_owner_without_the_role_changes_nothing(api: Api, role: str) -> None:
    effect = await api.doubt(await api.start())
    answer = await resolve(api, effect, LOOKED, ADA.model_copy(update={"role": role}))

    assert_problem(answer, 403, "forbidden", role=OPERATOR)
    assert await queue(api) == [effect]


@pytest.mark.parametrize("word", ["applied", "not_applied", "undone", "stands"])
async def test_word_the_same_word_and_another_one(api: Api, word: str) -> None:
    doubtful = word in {"applied", "not_applied"}
    effect = await (api.doubt(await api.start()) if doubtful else api.stuck())
    await asyncio.sleep(0.01)  # nothing of it can land any more
    first = await resolve(api, effect, {"as": word, "note": "seen"})
    again = await resolve(api, effect, {"as": word, "note": "seen again"}, GRACE)
    other = await resolve(api, effect, {"as": "undone" if word != "undone" else "stands", "note": "n"})
    states = {
        "applied": "committed",
        "not_applied": "failed",
        "undone": "compensated",
        "stands": "standing",
    }

    assert (first.status_code, first.json()["state"]) == (200, states[word])
    assert not first.json()["needs_attention"]
    assert first.json() == (await api.http.get(f"/v1/effects/{effect}")).json()
    assert (again.status_code, again.json()) == (200, first.json())
    assert_problem(other, 409, "already_resolved", effect=effect, state=states[word])
    assert await queue(api) == []


async def test_word_that_the_state_does_not_allow_says_the_state(api: Api) -> None:
    unknown, failed = await api.doubt(await api.start("c1")), await api.stuck("c2")
    standing = await api.standing("c3")
    for effect, word, state in (
        (unknown, "stands", "unknown"),
        (failed, "applied", "compensation_failed"),
        (standing, "undone", "standing"),
    ):
        answer = await resolve(api, effect, {"as": word, "note": "n"})
        problem = assert_problem(answer, 409, "not_resolvable", effect=effect, state=state)
        assert state in problem["detail"]

    assert sorted(await queue(api)) == sorted([unknown, failed])


async def test_not_applied_waits_until_nothing_can_land(api: Api) -> None:
    effect = await api.doubt(await api.start(), can_land_ms=60_000)
    answer = await resolve(api, effect, {"as": "not_applied", "note": "not in the outbox"})

    problem = assert_problem(answer, 409, "not_resolvable", state="unknown")
    assert "can still land until" in problem["detail"]
    assert await queue(api) == [effect]


async def test_foreign_and_unknown_effects_are_not_found_alike(api: Api) -> None:
    effect = await api.doubt(await api.start())
    foreign = await resolve(api, effect, LOOKED, FOREIGN)
    unknown = await resolve(api, "eff_none", LOOKED, FOREIGN)

    assert_problem(foreign, 404, "not_found")
    assert foreign.text.replace(effect, "ID") == unknown.text.replace("eff_none", "ID")
    assert await queue(api) == [effect]


@pytest.mark.parametrize(
    "body",
    [
        {},
        None,
        [],
        "applied",
        {"as": "applied"},
        {"note": "n"},
        {"as": "not-applied", "note": "n"},
        {"as": "committed", "note": "n"},
        {"as": None, "note": "n"},
        {"as": "applied", "note": ""},
        {"as": "applied", "note": " \n "},
        {"as": "applied", "note": 7},
        {"as": "applied", "note": "x" * 1001},
        {"as": "applied", "note": "n", "by": "acme/ada"},
        {"word": "applied", "note": "n"},
    ],
    ids=lambda body: str(body)[:40],
)
async def test_garbage_is_no_word(api: Api, body: object) -> None:
    effect = await api.doubt(await api.start())

    assert_problem(await resolve(api, effect, body), 422, "invalid_request")
    assert await queue(api) == [effect]


async def test_body_that_is_not_json_is_told_so(api: Api) -> None:
    answer = await api.http.post("/v1/effects/e/resolve", content="{", headers=identity(GRACE))

    assert_problem(answer, 400, "malformed_json")


async def test_of_words_that_meet_one_is_taken(api: Api) -> None:
    effect = await api.doubt(await api.start())
    await asyncio.sleep(0.01)
    answers = await asyncio.gather(
        *(resolve(api, effect, {"as": word, "note": "n"}) for word in ("applied", "not_applied") * 3)
    )
    statuses = sorted(answer.status_code for answer in answers)

    assert statuses == [200] * 3 + [409] * 3
    assert {answer.json()["state"] for answer in answers if answer.status_code == 200} < {
        "committed",
        "failed",
    }


async def test_who_decided_is_recorded(api: Api) -> None:
    effect = await api.doubt(await api.start())
    await resolve(api, effect, LOOKED)

    def read(connection: Any) -> list[tuple[Any, ...]]:
        found = connection.exec_driver_sql('SELECT effect, word, note, "by", via FROM resolutions')
        return [tuple(row) for row in found]

    assert await api.store._database.read(read) == [
        (effect, "applied", "it is in the outbox", "acme/grace", "api")
    ]


async def test_metric_counts_what_waits_and_names_nobody(api: Api) -> None:
    async def figures() -> dict[str, float]:
        answer = await api.http.get("/metrics", headers={HEADER: ""})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
            if sample.labels == {}
        }

    none = await figures()
    effect = await api.doubt(await api.start())
    await api.doubt(await api.start(who=STRANGER), who=STRANGER)
    two = await figures()
    await resolve(api, effect, LOOKED)
    one = await figures()

    name = "turnsaga_effects_needing_attention"
    assert (none, two, one) == ({name: 0}, {name: 2}, {name: 1})


async def test_metric_says_when_the_ledger_is_away(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent() -> int:
        raise StoreUnavailable("ledger", "away")

    monkeypatch.setattr(api.store, "count_attention", silent)

    assert_problem(await api.http.get("/metrics"), 503, "ledger_unavailable")


async def test_late_evidence_after_a_word_changes_nothing(api: Api) -> None:
    turn = await api.start()
    effect = await api.doubt(turn)
    await asyncio.sleep(0.01)
    before: EffectRow = await api.store.load_effect(api.ref(ADA, turn, effect))
    word = await resolve(api, effect, {"as": "not_applied", "note": "n"})
    after = await api.store.begin_lookup(before.ref)

    assert (word.json()["state"], after.state) == ("failed", "failed")
    assert (await api.http.get(f"/v1/effects/{effect}")).json() == word.json()
