"""Who may say when tools commit: all may tighten the deployment's policies, a service may loosen them."""

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
    "pay": ToolCard(name="pay", description="", system="PAY", reversible=True, commits="turn_end+10s"),
}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Api]:
    """Run the app with bearer tokens and four tools."""
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


LOOSER = [
    {"send_mail": "immediate!"},
    {"send_mail": "turn_end"},
    {"book": "immediate"},
    {"book": "immediate!"},
    {"pay": "turn_end+9s"},
    {"pay": "immediate+1h"},
    {"page": "immediate!", "send_mail": "off", "book": "immediate"},
]


@pytest.mark.parametrize("role", ["user", "operator", None])
@pytest.mark.parametrize("policies", LOOSER, ids=str)
async def test_only_a_service_loosens_what_the_deployment_says(
    guarded: Api, role: str | None, policies: dict[str, str]
) -> None:
    answer = await start(guarded, policies, bearer(token(role=role)))

    tool, policy = list(policies.items())[-1]
    problem = assert_problem(answer, 403, "forbidden", tool=tool, policy=policy, role="service")
    assert [word for word in (tool, policy, "service") if word not in problem["detail"]] == []
    assert guarded.temporal.started == []
    assert await guarded.store.latest_turn(ADA, "c1") is None


@pytest.mark.parametrize("policies", LOOSER, ids=str)
async def test_service_may_loosen(guarded: Api, policies: dict[str, str]) -> None:
    assert (await start(guarded, policies, bearer(token(role="service")))).status_code == 201


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "policies",
    [
        {},
        {"book": "turn_end"},
        {"book": "confirmed", "send_mail": "off"},
        {"book": "turn_end+5s", "send_mail": "confirmed+1m"},
        {"page": "immediate!"},
        {"page": "confirmed"},
        {"pay": "turn_end+10s"},
        {"pay": "turn_end+11s"},
    ],
    ids=str,
)
async def test_every_role_may_tighten(guarded: Api, role: str, policies: dict[str, str]) -> None:
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
