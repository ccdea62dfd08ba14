"""CRM keeps versions, and honours no keys."""

import pytest

from tests.sandbox.driver import Driver, eventually

ORDER = "/sobjects/order/o1"


async def test_record_is_created_updated_and_read(sandbox: Driver) -> None:
    created = await sandbox.crm("POST", ORDER, body={"fields": {"a": 1, "b": "x"}}, key="k1")
    updated = await sandbox.crm("PATCH", ORDER, body={"fields": {"b": None, "c": [2]}}, key="k2")
    got = await sandbox.crm("GET", ORDER)

    assert created.status_code == 201
    assert created.json() == {
        "kind": "order",
        "id": "o1",
        "version": 1,
        "fields": {"a": 1, "b": "x"},
        "created_by": "k1",
        "updated_by": "k1",
    }
    assert updated.json() == {
        "kind": "order",
        "id": "o1",
        "version": 2,
        "fields": {"a": 1, "b": None, "c": [2]},
        "created_by": "k1",
        "updated_by": "k2",
    }
    assert got.json() == updated.json()


async def test_create_and_update_of_one_record_are_two_effects(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {}}, key="k1")
    await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 1}}, key="k2")

    effect = await sandbox.effect("crm", "order/o1")

    assert effect is not None
    assert (effect["standing"], effect["applied"], effect["keys"]) == (2, 2, ["k1", "k2"])


async def test_key_sent_twice_writes_twice(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {}}, key="k1")
    for _ in range(2):
        await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 1}}, key="k2")

    assert (await sandbox.crm("GET", ORDER)).json()["version"] == 3
    assert await sandbox.counts("crm", "order/o1") == (3, 3, 0)


@pytest.mark.parametrize(
    ("kind", "record_id", "path"),
    [
        ("order", "a/b", "order/a%2Fb"),
        ("order", "a b", "order/a%20b"),
        ("order", "Müller 東", "order/M%C3%BCller%20%E6%9D%B1"),
        ("order", "50%", "order/50%25"),
        ("order", "versions", "order/versions"),
        ("or/der", "x?y#z", "or%2Fder/x%3Fy%23z"),
    ],
)
async def test_ids_are_decoded_from_the_path(sandbox: Driver, kind: str, record_id: str, path: str) -> None:
    created = await sandbox.crm("POST", f"/sobjects/{path}", body={"fields": {}}, key="k1")
    got = await sandbox.crm("GET", f"/sobjects/{path}")
    versions = await sandbox.crm("GET", f"/sobjects/{path}/versions")

    assert (created.json()["kind"], created.json()["id"]) == (kind, record_id)
    assert got.json() == created.json()
    assert [entry["op"] for entry in versions.json()] == ["create"]
    assert await sandbox.counts("crm", f"{kind}/{record_id}") == (1, 1, 0)


async def test_second_create_is_refused(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {"a": 1}}, key="k1")

    response = await sandbox.crm("POST", ORDER, body={"fields": {"a": 2}}, key="k2")

    assert (response.status_code, response.json()["errorCode"]) == (409, "DUPLICATE_VALUE")
    assert (await sandbox.crm("GET", ORDER)).json()["fields"] == {"a": 1}
    assert await sandbox.counts("crm", "order/o1") == (1, 1, 0)


@pytest.mark.parametrize("if_match", ["1", '"1"'])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_write_on_another_version_is_refused(sandbox: Driver, method: str, if_match: str) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {}}, key="k1")
    await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 1}}, key="k2")

    refused = await sandbox.crm(method, ORDER, body={"fields": {"a": 2}}, key="k3", If_Match=if_match)
    taken = await sandbox.crm(method, ORDER, body={"fields": {"a": 2}}, key="k3", If_Match="2")

    assert refused.status_code == 412
    assert (refused.json()["errorCode"], refused.json()["version"]) == ("VERSION_MISMATCH", 2)
    assert taken.is_success


async def test_revert_puts_content_and_version_back_and_undoes_the_update(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {"a": 1}}, key="k1")
    await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 2, "b": 3}}, key="k2")

    reverted = await sandbox.crm(
        "POST", f"{ORDER}/revert", body={"to": 1}, key="k2_undo", If_Match="2", Undo_Of="k2"
    )

    assert reverted.status_code == 200
    record = reverted.json()
    assert (record["version"], record["fields"], record["updated_by"]) == (1, {"a": 1}, "k1")
    assert await sandbox.counts("crm", "order/o1") == (1, 2, 1)
    (undo,) = await sandbox.calls("crm", "undo")
    assert (undo["key"], undo["applied_at"] is None) == ("k2_undo", False)

    next_version = await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 9}}, key="k3")
    assert next_version.json()["version"] == 3


async def test_revert_is_refused_once_the_record_has_changed(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {"a": 1}}, key="k1")
    await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 2}}, key="k2")
    await sandbox.act(system="crm", op="edit", identity="order/o1", fields={"a": 7})

    response = await sandbox.crm(
        "POST", f"{ORDER}/revert", body={"to": 1}, key="k2_undo", If_Match="2", Undo_Of="k2"
    )

    assert (response.status_code, response.json()["version"]) == (412, 3)
    assert (await sandbox.crm("GET", ORDER)).json()["fields"] == {"a": 7}
    assert await sandbox.counts("crm", "order/o1") == (2, 2, 0)


async def test_revert_over_somebody_elses_update_wipes_it(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {"a": 1}}, key="k1")
    await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 2}}, key="k2")
    await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 3}}, key="k3")

    await sandbox.crm("POST", f"{ORDER}/revert", body={"to": 1}, If_Match="3", Undo_Of="k2")

    assert await sandbox.counts("crm", "order/o1") == (1, 3, 1)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"to": 1}, {}, 428),
        ({"to": 2}, {"If_Match": "2"}, 400),
        ({"to": 7}, {"If_Match": "2"}, 400),
        ({"to": 0}, {"If_Match": "2"}, 400),
        ({}, {"If_Match": "2"}, 400),
        ({"to": 1}, {"If_Match": "two"}, 400),
    ],
)
async def test_revert_that_makes_no_sense_is_refused(
    sandbox: Driver, body: dict[str, int], headers: dict[str, str], status: int
) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {"a": 1}}, key="k1")
    await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 2}}, key="k2")

    response = await sandbox.crm("POST", f"{ORDER}/revert", body=body, Undo_Of="k2", **headers)

    assert response.status_code == status
    assert await sandbox.counts("crm", "order/o1") == (2, 2, 0)


async def test_delete_undoes_the_create_and_keeps_the_log(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {}}, key="k1")

    deleted = await sandbox.crm("DELETE", ORDER, key="k1_undo", If_Match="1", Undo_Of="k1")
    again = await sandbox.crm("DELETE", ORDER, key="k1_undo", If_Match="1", Undo_Of="k1")
    got = await sandbox.crm("GET", ORDER)
    versions = await sandbox.crm("GET", f"{ORDER}/versions")

    assert [answer.status_code for answer in (deleted, again, got)] == [204, 404, 404]
    assert versions.status_code == 200
    assert [(entry["op"], entry["key"]) for entry in versions.json()] == [
        ("create", "k1"),
        ("delete", "k1_undo"),
    ]
    assert await sandbox.counts("crm", "order/o1") == (0, 1, 1)


async def test_delete_that_undoes_nothing_wipes(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {}}, key="k1")
    await sandbox.crm("PATCH", ORDER, body={"fields": {"a": 1}}, key="k2")

    await sandbox.crm("DELETE", ORDER)

    assert await sandbox.counts("crm", "order/o1") == (0, 2, 0)


async def test_version_numbers_outlive_the_record(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {}}, key="k1")
    await sandbox.crm("DELETE", ORDER, Undo_Of="k1")

    created = await sandbox.crm("POST", ORDER, body={"fields": {}}, key="k2")
    reverted = await sandbox.crm("POST", f"{ORDER}/revert", body={"to": 1}, If_Match="2", Undo_Of="k2")

    assert created.json()["version"] == 2
    assert reverted.status_code == 400
    assert await sandbox.counts("crm", "order/o1") == (1, 2, 1)


async def test_customers_are_there_from_the_start_and_no_effects(sandbox: Driver) -> None:
    found = await sandbox.crm("GET", "/query?kind=customer&q=ADA")
    other_kind = await sandbox.crm("GET", "/query?kind=order&q=ada")
    by_id = await sandbox.crm("GET", "/query?q=Us_2")

    assert [(one["id"], one["fields"]["name"]) for one in found.json()["records"]] == [
        ("cus_1", "Ada Example")
    ]
    assert other_kind.json() == {"records": []}
    assert [one["id"] for one in by_id.json()["records"]] == ["cus_2"]
    assert (await sandbox.truth())["effects"] == []


async def test_query_finds_what_a_record_is_now(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {"colour": "red"}}, key="k1")
    await sandbox.crm("PATCH", ORDER, body={"fields": {"colour": "blue"}}, key="k2")

    red = await sandbox.crm("GET", "/query?kind=order&q=red")
    blue = await sandbox.crm("GET", "/query?kind=order&q=blue")

    assert (red.json()["records"], len(blue.json()["records"])) == ([], 1)


async def test_lookups_lag_behind(sandbox: Driver) -> None:
    await sandbox.crm("POST", ORDER, body={"fields": {"a": 1}}, key="k1")
    await sandbox.turn("crm", read_lag_ms=60_000)

    got = await sandbox.crm("GET", ORDER)
    versions = await sandbox.crm("GET", f"{ORDER}/versions")
    duplicate = await sandbox.crm("POST", ORDER, body={"fields": {}}, key="k2")
    await sandbox.turn("crm", read_lag_ms=1)

    assert (got.status_code, versions.status_code, duplicate.status_code) == (404, 404, 409)
    await eventually(lambda: _exists(sandbox))


async def _exists(sandbox: Driver) -> bool:
    return (await sandbox.crm("GET", ORDER)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/sobjects/order/none", 404, "NOT_FOUND"),
        ("PATCH", "/sobjects/order/none", 404, "NOT_FOUND"),
        ("GET", "/sobjects/order/none/versions", 404, "NOT_FOUND"),
        ("GET", "/sobjects/order", 404, "NOT_FOUND"),
        ("POST", "/sobjects/order/", 404, "NOT_FOUND"),
        ("GET", "/sobjects/order/o/other", 404, "NOT_FOUND"),
        ("PUT", "/sobjects/order/o", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/sobjects/order/o/revert", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/query", 405, "METHOD_NOT_ALLOWED"),
    ],
)
async def test_wrong_address_is_refused(
    sandbox: Driver, method: str, path: str, status: int, code: str
) -> None:
    response = await sandbox.crm(method, path, body={"fields": {}})

    assert (response.status_code, response.json()["errorCode"]) == (status, code)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"fields":[]}', b'{"fields":{},"x":1}', b'{"fields":{"a":"\\ud800"}}']
)
async def test_body_that_cannot_be_read_is_refused(sandbox: Driver, body: bytes) -> None:
    response = await sandbox.http.post(f"/crm{ORDER}", content=body, headers={"Authorization": "Bearer t"})

    assert (response.status_code, response.json()["errorCode"]) == (400, "JSON_PARSER_ERROR")
    assert await sandbox.counts("crm", "order/o1") == (0, 0, 0)


async def test_call_without_a_token_is_refused(sandbox: Driver) -> None:
    response = await sandbox.http.post(f"/crm{ORDER}", json={"fields": {}})

    assert (response.status_code, response.json()["errorCode"]) == (401, "INVALID_SESSION_ID")
    assert await sandbox.counts("crm", "order/o1") == (0, 0, 0)
