"""An unknown id and somebody else's get the same answer, byte for byte but for the id, on every route."""

from dataclasses import dataclass

import httpx
import pytest

from tests.web.served import ADA, EVE, STRANGER, Api, identity
from turnsaga.models import Principal

UNKNOWN = "unknown-id"
OWN_NAMES = "/v1/conversations/{conversation}/turns"
"""A start makes what it names: another user's conversation of that name is another one."""


@dataclass(frozen=True)
class Route:
    """A route, the status that it has for what isn't the caller's, and whether it answers a held effect.

    One that is an ``operators`` takes other users' effects of their tenant for theirs.
    """

    method: str
    path: str
    status: int = 404
    answers: bool = False
    operators: bool = False


ROUTES = (
    Route("GET", "/v1/turns/{turn}"),
    Route("GET", "/v1/turns/{turn}?wait=settled&timeout=5"),
    Route("GET", "/v1/turns/{turn}/events"),
    Route("POST", "/v1/turns/{turn}/abort"),
    Route("GET", "/v1/effects/{effect}"),
    Route("GET", "/v1/effects/by-key/{key}"),
    Route("POST", "/v1/effects/{effect}/acknowledge"),
    Route("POST", "/v1/effects/{effect}/confirm", answers=True),
    Route("POST", "/v1/effects/{effect}/reject", answers=True),
    Route("POST", "/v1/effects/{effect}/resolve", operators=True),
    Route("POST", "/v1/conversations/{conversation}/abort"),
    # Names of conversations are their owner's: the list of one that has nothing is empty.
    Route("GET", "/v1/conversations/{conversation}/effects", 200),
)
WITHOUT_ID = {"/v1/effects", "/v1/attention", "/healthz", "/readyz", "/metrics"}


def test_every_route_with_an_id_is_in_the_table(api: Api) -> None:
    paths = set(api.app.openapi()["paths"])

    assert {route.path.split("?")[0] for route in ROUTES} | WITHOUT_ID | {OWN_NAMES} == paths


@pytest.mark.parametrize(
    "who",
    [
        EVE,
        EVE.model_copy(update={"role": "service"}),
        EVE.model_copy(update={"role": "operator"}),
        STRANGER.model_copy(update={"role": "operator"}),
    ],
    ids=lambda who: "-".join(identity(who).values()),
)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_foreign_id_is_answered_as_an_unknown_one(api: Api, route: Route, who: Principal) -> None:
    ids = await ids_of_a_turn_with_an_effect(api, route)
    name = route.path.partition("{")[2].partition("}")[0]

    foreign = await ask(api, route, ids, identity(who))
    unknown = await ask(api, route, dict.fromkeys(ids, UNKNOWN), identity(who))

    if route.operators and who.role != "operator":
        assert foreign.status_code == 403
    elif route.operators and who.tenant == ADA.tenant:
        assert (foreign.status_code, unknown.status_code) == (200, 404)
        return
    else:
        assert foreign.status_code == route.status
    assert same(foreign, ids[name]) == same(unknown, UNKNOWN)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_owner_is_answered_otherwise(api: Api, route: Route) -> None:
    """Without it the test above would hold for a route that knows nobody's ids."""
    ids = await ids_of_a_turn_with_an_effect(api, route)
    if route.path.endswith(("settled&timeout=5", "/events")):
        await api.complete(ids["turn"])

    own = await ask(api, route, ids, identity(role_for(route, ADA)))

    assert own.status_code in {200, 202}
    assert ids["turn"] in own.text


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "POST"], ids=lambda r: r.path)
async def test_foreign_call_writes_nothing(api: Api, route: Route) -> None:
    ids = await ids_of_a_turn_with_an_effect(api, route)
    before = await api.store.event_page(ADA, ids["turn"], after=0)

    await ask(api, route, ids, identity(role_for(route, STRANGER)))

    assert await api.store.event_page(ADA, ids["turn"], after=0) == before
    assert api.temporal.signalled == []


async def ids_of_a_turn_with_an_effect(api: Api, route: Route) -> dict[str, str]:
    turn = await api.start("c-of-ada")
    if route.operators:
        effect = await api.doubt(turn)
    else:
        effect = await (api.hold(turn) if route.answers else api.commit(turn))
    key = (await api.store.effect_view(ADA, effect)).key
    return {"turn": turn, "effect": effect, "key": key, "conversation": "c-of-ada"}


def role_for(route: Route, who: Principal) -> Principal:
    return who.model_copy(update={"role": "operator"}) if route.operators else who


async def ask(api: Api, route: Route, ids: dict[str, str], headers: dict[str, str]) -> httpx.Response:
    body: dict[str, object] | None = {"version": 1, "digest": "shown"} if route.answers else None
    if route.operators:
        body = {"as": "applied", "note": "looked"}
    return await api.http.request(route.method, route.path.format(**ids), headers=headers, json=body)


def same(answer: httpx.Response, name: str) -> tuple[int, list[tuple[str, str]], str]:
    headers = [(key, value) for key, value in answer.headers.items() if key != "content-length"]
    return answer.status_code, headers, answer.text.replace(name, "ID")
