"""The truth says what stands, in the order in which it came."""

import asyncio

import httpx
import pytest

from tests.sandbox.driver import Driver, eventually


async def test_names_are_exactly_those_of_the_contract(sandbox: Driver) -> None:
    await sandbox.charge()

    truth = await sandbox.truth()

    assert set(truth) == {"effects", "calls"}
    assert set(truth["effects"][0]) == {"system", "identity", "standing", "applied", "undone", "keys", "at"}
    assert set(truth["calls"][0]) >= {"system", "method", "op", "key", "at", "answered"}


async def test_calls_stand_in_order_of_arrival_with_when_they_were_applied(sandbox: Driver) -> None:
    await sandbox.turn("pay", apply_after_ms=1000)
    slow = asyncio.create_task(sandbox.charge("INV-1", key="k1"))
    await eventually(lambda: _has_arrived(sandbox))
    pending = (await sandbox.truth())["calls"][0]
    await sandbox.mail("INV-1", key="m1")
    await slow

    first, second = (await sandbox.truth())["calls"]
    assert (pending["answered"], pending["applied_at"]) == (False, None)
    assert (first["key"], second["key"]) == ("k1", "m1")
    assert first["at"] < second["at"]
    assert first["applied_at"] > second["applied_at"]


async def _has_arrived(sandbox: Driver) -> bool:
    return bool((await sandbox.truth())["calls"])


async def test_lookups_are_calls_and_no_effects(sandbox: Driver) -> None:
    await sandbox.crm("GET", "/sobjects/customer/cus_1")
    await sandbox.search("metadata['invoice']:'INV-1'")

    truth = await sandbox.truth()

    assert truth["effects"] == []
    calls = truth["calls"]
    assert [(call["system"], call["op"], call["identity"]) for call in calls] == [
        ("crm", "lookup", "customer/cus_1"),
        ("pay", "lookup", "INV-1"),
    ]
    assert [call["applied_at"] for call in calls] == [None, None]


async def test_somebody_elses_edit_is_a_version_and_no_effect(sandbox: Driver) -> None:
    await sandbox.crm("POST", "/sobjects/order/a%2Fb", body={"fields": {"x": 1}}, key="k1")

    response = await sandbox.act(system="crm", op="edit", identity="order/a/b", fields={"x": 2})

    record = (await sandbox.crm("GET", "/sobjects/order/a%2Fb")).json()
    versions = (await sandbox.crm("GET", "/sobjects/order/a%2Fb/versions")).json()
    assert response.status_code == 200
    assert (record["version"], record["fields"], record["updated_by"]) == (2, {"x": 2}, None)
    assert [(entry["op"], entry["key"]) for entry in versions] == [("create", "k1"), ("edit", None)]
    assert await sandbox.counts("crm", "order/a/b") == (1, 1, 0)


async def test_somebody_elses_delete_wipes_all_of_the_record(sandbox: Driver) -> None:
    await sandbox.crm("POST", "/sobjects/order/o1", body={"fields": {}}, key="k1")
    await sandbox.crm("PATCH", "/sobjects/order/o1", body={"fields": {"x": 2}}, key="k2")
    await sandbox.crm("POST", "/sobjects/order/o2", body={"fields": {}}, key="k3")

    await sandbox.act(system="crm", op="delete", identity="order/o1")

    assert (await sandbox.crm("GET", "/sobjects/order/o1")).status_code == 404
    assert await sandbox.counts("crm", "order/o1") == (0, 2, 0)
    assert await sandbox.counts("crm", "order/o2") == (1, 1, 0)


async def test_somebody_elses_refund_wipes_the_charge(sandbox: Driver) -> None:
    charge = (await sandbox.charge()).json()["id"]

    await sandbox.act(system="pay", op="delete", identity="INV-1")
    refund = await sandbox.refund(charge)

    assert refund.json()["error"]["code"] == "charge_already_refunded"
    assert await sandbox.counts("pay", "INV-1") == (0, 1, 0)


async def test_somebody_elses_attachment_is_a_version_of_both_ends(sandbox: Driver) -> None:
    await sandbox.crm("POST", "/sobjects/order/o1", body={"fields": {}}, key="k1")

    await sandbox.act(system="crm", op="attach", identity="order/o1", to="customer/cus_1")
    await sandbox.act(system="crm", op="attach", identity="order/o1", to="note 5")

    order = (await sandbox.crm("GET", "/sobjects/order/o1")).json()
    customer = (await sandbox.crm("GET", "/sobjects/customer/cus_1")).json()
    assert (order["version"], order["fields"]["attachments"]) == (3, ["customer/cus_1", "note 5"])
    assert (customer["version"], customer["fields"]["attachments"]) == (2, ["order/o1"])
    assert await sandbox.counts("crm", "order/o1") == (1, 1, 0)


@pytest.mark.parametrize(
    "act",
    [
        {"system": "crm", "op": "rename", "identity": "order/o1"},
        {"system": "mail", "op": "delete", "identity": "INV-1"},
        {"system": "hook", "op": "edit", "identity": "ops/hello", "fields": {"text": "hi"}},
        {"system": "pay", "op": "edit", "identity": "INV-1", "fields": {"a": 1}},
        {"system": "crm", "op": "edit", "identity": "order/o1"},
        {"system": "crm", "op": "edit", "identity": "order/o1", "fields": {"a": 1}, "by": "me"},
        {"system": "crm", "op": "delete"},
        {},
    ],
)
async def test_unknown_act_is_refused(sandbox: Driver, act: dict[str, object]) -> None:
    response = await sandbox.act(**act)

    assert response.status_code == 422
    assert response.json()["errors"]


@pytest.mark.parametrize(
    "act",
    [
        {"system": "crm", "op": "delete", "identity": "order/none"},
        {"system": "crm", "op": "edit", "identity": "none", "fields": {"a": 1}},
        {"system": "crm", "op": "attach", "identity": "order/none", "to": "x"},
        {"system": "pay", "op": "delete", "identity": "INV-none"},
        {"system": "hook", "op": "delete", "identity": "ops/none"},
    ],
)
async def test_act_on_nothing_is_not_found(sandbox: Driver, act: dict[str, object]) -> None:
    assert (await sandbox.act(**act)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/crm/sobjects/order/o1"),
        ("POST", "/pay/v1/charges"),
        ("POST", "/hook/ops"),
        ("PUT", "/_control/pay"),
        ("POST", "/_act"),
    ],
)
async def test_request_over_one_megabyte_is_refused(sandbox: Driver, method: str, path: str) -> None:
    response = await sandbox.http.request(method, path, content=b"x" * 1_048_577)

    assert response.status_code == 413
    assert response.json()["status"] == 413
    assert (await sandbox.truth())["calls"] == []


async def test_request_that_never_comes_whole_does_nothing(sandbox: Driver) -> None:
    url = httpx.URL(sandbox.url)
    _reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /crm/sobjects/order/o1 HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()

    assert (await sandbox.http.get("/healthz")).status_code == 200
    assert (await sandbox.truth())["calls"] == []


@pytest.mark.parametrize("path", ["/nothing", "/_truth/x", "/jobs"])
async def test_unknown_address_is_a_problem(sandbox: Driver, path: str) -> None:
    response = await sandbox.http.get(path)

    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


async def test_truth_cannot_be_deleted(sandbox: Driver) -> None:
    assert (await sandbox.http.delete("/_truth")).status_code == 405
