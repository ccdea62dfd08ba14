"""Records of effects, lists of them, and what their user has yet to be told of."""

import pytest

from tests.web.served import ADA, EVE, Api, assert_problem, identity


async def test_effect_is_found_by_its_id_and_by_its_key(api: Api) -> None:
    turn = await api.start("c1")
    effect = await api.commit(turn)
    by_id = await api.http.get(f"/v1/effects/{effect}")
    by_key = await api.http.get(f"/v1/effects/by-key/{by_id.json()['key']}")

    assert by_id.status_code == 200
    assert by_id.json() == by_key.json()
    shown = by_id.json()
    assert (shown["effect"], shown["turn"], shown["conversation"]) == (effect, turn, "c1")
    assert (shown["state"], shown["title"]) == ("committed", "mail \u00fc")
    assert set(shown) == set(type(await api.store.effect_view(ADA, effect)).model_fields)


async def test_effects_of_a_conversation_are_its_own_in_order(api: Api) -> None:
    turn = await api.start("c1")
    effects = [await api.commit(turn) for _ in range(3)]
    await api.commit(await api.start("c2"))
    answer = await api.http.get("/v1/conversations/c1/effects")

    assert answer.status_code == 200
    assert [shown["effect"] for shown in answer.json()["effects"]] == effects


async def test_account_has_the_effects_of_all_its_conversations(api: Api) -> None:
    effects = {await api.commit(await api.start("c1")), await api.commit(await api.start("c2"))}
    await api.commit(await api.start("c1", who=EVE), who=EVE)
    answer = await api.http.get("/v1/effects")

    assert {shown["effect"] for shown in answer.json()["effects"]} == effects


async def test_outstanding_effects_are_those_that_stand_until_acknowledged(api: Api) -> None:
    standing = await api.standing("c1")
    await api.commit(await api.start("c2"))
    before = await api.http.get("/v1/effects", params={"outstanding": "true"})
    first = await api.http.post(f"/v1/effects/{standing}/acknowledge")
    second = await api.http.post(f"/v1/effects/{standing}/acknowledge")
    after = await api.http.get("/v1/effects", params={"outstanding": "true"})

    assert [shown["effect"] for shown in before.json()["effects"]] == [standing]
    assert (first.status_code, first.json()["state"]) == (200, "standing")
    assert first.json() == (await api.http.get(f"/v1/effects/{standing}")).json()
    assert (second.status_code, second.json()) == (200, first.json())
    assert after.json() == {"effects": []}


async def test_acknowledging_somebody_elses_effect_leaves_it_outstanding(api: Api) -> None:
    standing = await api.standing(who=EVE)
    await api.http.post(f"/v1/effects/{standing}/acknowledge")
    answer = await api.http.get("/v1/effects?outstanding=true", headers=identity(EVE))

    assert [shown["effect"] for shown in answer.json()["effects"]] == [standing]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/effects", "state"),
        ("/v1/effects", "since_version"),
        ("/v1/conversations/c1/effects", "outstanding"),
        ("/v1/conversations/c1/effects", "state"),
        ("/v1/conversations/c1/effects", "since_version"),
    ],
)
async def test_filter_of_a_later_version_is_not_ignored(api: Api, path: str, name: str) -> None:
    assert_problem(await api.http.get(path, params={name: "1"}), 422, "unsupported", field=name)


async def test_outstanding_is_yes_or_no(api: Api) -> None:
    answer = await api.http.get("/v1/effects", params={"outstanding": "maybe"})

    assert_problem(answer, 422, "invalid_request", field="outstanding")
