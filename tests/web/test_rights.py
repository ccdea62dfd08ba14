"""Who may have an irreversible tool run: all may tighten policies, a service alone may loosen them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.web.issuer import AUDIENCE, ISSUER, bearer, key_set, token
from tests.web.served import ADA, Api, api_over, assert_problem, identity, settings_of
from turnsaga.tools import ToolCard
from web.identity import HEADER, ROLES

CARDS = {
    "send_mail": ToolCard(name="send_mail", description="", system="MAIL", reversible=False),
    "page": ToolCard(name="page", description="", system="PAGER", reversible=False, commits="immediate!"),
    "book": ToolCard(name="book", description="", system="CRM", reversible=True),
}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Api]:
    """Run the app with bearer tokens and three tools."""
    settings = settings_of(jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_keys=json.dumps(key_set("r")))
    async with api_over(tmp_path, settings=settings) as api:
        del api.http.headers[HEADER]
        await api.store.write_tool_cards(CARDS)
        yield api


async def start(api: Api, policies: dict[str, str], headers: dict[str, str]) -> httpx.Response:
    return await api.http.post(
        "/v1/conversations/c1/turns",
        json={"message": "a", "policies": policies},
        headers={**headers, "Idempotency-Key": "k"},
    )


@pytest.mark.parametrize("role", ["user", "operator", None])
@pytest.mark.parametrize(
    "policies",
    [{"send_mail": "immediate!"}, {"book": "immediate", "page": "immediate!", "send_mail": "immediate!"}],
    ids=["alone", "among others"],
)
async def test_only_a_service_has_an_irreversible_tool_run(
    guarded: Api, role: str | None, policies: dict[str, str]
) -> None:
    answer = await start(guarded, policies, bearer(token(role=role)))

    problem = assert_problem(answer, 403, "forbidden", tool="send_mail", policy="immediate!", role="service")
    assert [word for word in ("send_mail", "immediate!", "service") if word not in problem["detail"]] == []
    assert guarded.temporal.started == []
    assert await guarded.store.latest_turn(ADA, "c1") is None


async def test_service_has_an_irreversible_tool_run(guarded: Api) -> None:
    answer = await start(guarded, {"send_mail": "immediate!"}, bearer(token(role="service")))

    assert answer.status_code == 201


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "policies",
    [{}, {"book": "immediate"}, {"book": "immediate!"}, {"page": "immediate!"}],
    ids=["none", "reversible", "reversible by name", "as the tool says itself"],
)
async def test_what_loosens_nothing_is_every_roles(guarded: Api, role: str, policies: dict[str, str]) -> None:
    assert (await start(guarded, policies, bearer(token(role=role)))).status_code == 201


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("tool", ["nothing", "send_mail"])
async def test_policy_that_is_not_available_is_refused_as_such(guarded: Api, role: str, tool: str) -> None:
    policy = "immediate" if tool == "send_mail" else "immediate!"

    answer = await start(guarded, {tool: policy}, bearer(token(role=role)))

    assert_problem(answer, 422, "policy_refused", tool=tool)


@pytest.mark.parametrize("role", ROLES)
async def test_development_identity_has_all_rights(api: Api, role: str) -> None:
    who = ADA.model_copy(update={"role": role})

    assert (await start(api, {"send_mail": "immediate!"}, identity(who))).status_code == 201
