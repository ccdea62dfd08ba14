"""The knobs that come between a call and its answer, aimed and counted."""

import asyncio
from typing import Any

import aiosmtplib
import httpx
import pytest

from tests.sandbox.driver import Driver, eventually

CONNECTION_LOST = (httpx.RemoteProtocolError, httpx.ReadError)
INVOICE = "metadata['invoice']:'INV-1'"


async def test_dropped_answer_leaves_its_effect(sandbox: Driver) -> None:
    await sandbox.turn("pay", drop_response=1)

    with pytest.raises(CONNECTION_LOST):
        await sandbox.charge()
    dropped = await sandbox.calls("pay")
    replay = await sandbox.charge()

    assert [(call["answered"], call["status"]) for call in dropped] == [(False, None)]
    assert dropped[0]["applied_at"] is not None
    assert replay.headers["idempotent-replayed"] == "true"
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)


async def test_dropped_answer_logs_nothing(sandbox: Driver, caplog: pytest.LogCaptureFixture) -> None:
    await sandbox.turn("pay", drop_response=1)
    await sandbox.turn("mail", drop_response=1)

    with pytest.raises(CONNECTION_LOST):
        await sandbox.charge()
    with pytest.raises(aiosmtplib.SMTPServerDisconnected):
        await sandbox.mail()

    assert [record.message for record in caplog.records if record.levelname not in ("INFO", "DEBUG")] == []


async def test_dropped_write_without_keys_is_applied_once_a_call(sandbox: Driver) -> None:
    await sandbox.turn("crm", drop_response=1)

    with pytest.raises(CONNECTION_LOST):
        await sandbox.crm("POST", "/sobjects/lead/l1", body={"fields": {"name": "A"}}, key="k1")
    again = await sandbox.crm("POST", "/sobjects/lead/l1", body={"fields": {"name": "A"}}, key="k1")

    assert (again.status_code, again.json()["errorCode"]) == (409, "DUPLICATE_VALUE")
    assert await sandbox.counts("crm", "lead/l1") == (1, 1, 0)


async def test_effect_lands_after_its_client_has_gone(sandbox: Driver) -> None:
    await sandbox.turn("pay", apply_after_ms=1200)

    with pytest.raises(httpx.ReadTimeout):
        await sandbox.charge(patience_s=0.1)
    before = await sandbox.search(INVOICE)

    assert before == []
    await eventually(lambda: _stands(sandbox, "pay", "INV-1"))
    assert [call["answered"] for call in await sandbox.calls("pay", "apply")] == [False]


async def test_slow_answer_holds_no_effect_up(sandbox: Driver) -> None:
    await sandbox.turn("pay", latency_ms=60_000, only={"op": "apply"})

    with pytest.raises(httpx.ReadTimeout):
        await sandbox.charge(patience_s=0.3)

    await eventually(lambda: _stands(sandbox, "pay", "INV-1"))
    assert [call["answered"] for call in await sandbox.calls("pay")] == [False]


async def test_latency_delays_lookups_too(sandbox: Driver) -> None:
    await sandbox.turn("crm", latency_ms=250)
    loop = asyncio.get_running_loop()

    started = loop.time()
    response = await sandbox.crm("GET", "/sobjects/customer/cus_1")

    assert response.status_code == 200
    assert loop.time() - started >= 0.25


@pytest.mark.parametrize(("applied", "effects"), [(False, (0, 0, 0)), (True, (1, 1, 0))])
async def test_failed_call_is_applied_or_not(
    sandbox: Driver, *, applied: bool, effects: tuple[int, int, int]
) -> None:
    await sandbox.turn("pay", fail={"status": 503, "times": 1, "applied": applied})
    await sandbox.turn("crm", fail={"status": 502, "times": 1, "applied": applied})

    charge = await sandbox.charge()
    record = await sandbox.crm("POST", "/sobjects/lead/l1", body={"fields": {}}, key="k1")

    assert (charge.status_code, charge.json()["error"]["type"]) == (503, "api_error")
    assert (record.status_code, record.json()["errorCode"]) == (502, "SERVER_UNAVAILABLE")
    assert await sandbox.counts("pay", "INV-1") == effects
    assert await sandbox.counts("crm", "lead/l1") == effects
    assert [call["answered"] for call in await sandbox.calls("pay")] == [True]

    assert (await sandbox.charge()).status_code == 200
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)


async def test_effect_can_land_after_its_failure_was_answered(sandbox: Driver) -> None:
    await sandbox.turn(
        "pay", apply_after_ms=1200, fail={"status": 500, "times": 1, "applied": True}, only={"op": "apply"}
    )

    failed = await sandbox.charge()
    found = await sandbox.search(INVOICE)

    assert (failed.status_code, found) == (500, [])
    await eventually(lambda: _stands(sandbox, "pay", "INV-1"))


async def test_failure_without_an_effect_waits_for_none(sandbox: Driver) -> None:
    await sandbox.turn("pay", apply_after_ms=60_000, fail={"status": 500, "times": 1})

    failed = await sandbox.charge()
    await sandbox.turn("pay")

    assert failed.status_code == 500
    assert (await sandbox.charge(patience_s=5)).status_code == 200


async def _stands(sandbox: Driver, system: str, identity: str) -> bool:
    return await sandbox.counts(system, identity) == (1, 1, 0)


async def test_lookups_use_no_counter_up(sandbox: Driver) -> None:
    await sandbox.turn("crm", drop_response=1, fail={"status": 500, "times": 1})

    answers = [await sandbox.crm("GET", "/sobjects/customer/cus_1") for _ in range(3)]
    left = (await sandbox.http.get("/_control")).json()["crm"]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert (left["drop_response"], left["fail"]["times"]) == (1, 1)


@pytest.mark.parametrize(
    "only",
    [{"op": "lookup"}, {"method": "get"}, {"path": "/sobjects/customer"}, {"path": "/crm/sobjects/*/cus_1"}],
)
async def test_lookup_that_is_aimed_at_uses_a_counter_up(sandbox: Driver, only: dict[str, str]) -> None:
    await sandbox.turn("crm", fail={"status": 503, "times": 1}, only=only)

    answers = [await sandbox.crm("GET", "/sobjects/customer/cus_1") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [503, 200]


async def test_lookup_that_is_aimed_at_can_be_cut(sandbox: Driver) -> None:
    await sandbox.turn("crm", drop_response=1, only={"op": "lookup"})

    with pytest.raises(CONNECTION_LOST):
        await sandbox.crm("GET", "/query?q=ada")
    assert (await sandbox.crm("GET", "/query?q=ada")).status_code == 200


@pytest.mark.parametrize(
    ("only", "is_hit"),
    [
        ({"method": "POST"}, True),
        ({"method": "GET"}, False),
        ({"path": "/v1/charges"}, True),
        ({"path": "/pay/v1"}, True),
        ({"path": "/v1/*s"}, True),
        ({"path": "/v1/refunds"}, False),
        ({"op": "apply"}, True),
        ({"op": "undo"}, False),
        ({"identity": "INV-1"}, True),
        ({"identity": "INV-2"}, False),
        ({"identity": "INV-1", "op": "undo"}, False),
        ({"identity": "INV-1", "op": "apply", "method": "post", "path": "/v1/charges"}, True),
        ({}, True),
    ],
)
async def test_only_aims_the_knobs(sandbox: Driver, only: dict[str, str], *, is_hit: bool) -> None:
    await sandbox.turn("pay", fail={"status": 500, "times": 1}, only=only)

    response = await sandbox.charge("INV-1")

    assert response.status_code == (500 if is_hit else 200)


async def test_refund_is_aimed_at_by_the_invoice_of_its_charge(sandbox: Driver) -> None:
    one = (await sandbox.charge("INV-1", key="k1")).json()["id"]
    two = (await sandbox.charge("INV-2", key="k2")).json()["id"]
    await sandbox.turn(
        "pay", fail={"status": 500, "times": 1}, only={"op": "undo", "identity": "INV-2"}, drop_response=0
    )

    statuses = [(await sandbox.refund(charge, key=charge)).status_code for charge in (one, two, two)]

    assert statuses == [200, 500, 200]


async def test_failure_goes_before_a_cut_and_one_call_has_one(sandbox: Driver) -> None:
    await sandbox.turn("pay", fail={"status": 500, "times": 1}, drop_response=1)

    failed = await sandbox.charge()
    with pytest.raises(CONNECTION_LOST):
        await sandbox.charge()

    assert failed.status_code == 500
    left = (await sandbox.http.get("/_control")).json()["pay"]
    assert (left["fail"]["times"], left["drop_response"]) == (0, 0)
    assert (await sandbox.charge()).status_code == 200


async def test_put_replaces_all_knobs_of_its_system_only(sandbox: Driver) -> None:
    await sandbox.turn("pay", drop_response=3, latency_ms=5)
    await sandbox.turn("crm", latency_ms=7)
    await sandbox.turn("pay", read_lag_ms=9)

    shown = (await sandbox.http.get("/_control")).json()

    assert shown == {"pay": {"read_lag_ms": 9}, "crm": {"latency_ms": 7}, "mail": {}, "hook": {}}


async def test_delete_clears_all_knobs(sandbox: Driver) -> None:
    untouched: dict[str, Any] = {"pay": {}, "crm": {}, "mail": {}, "hook": {}}
    for system in untouched:
        await sandbox.turn(system, drop_response=1)

    response = await sandbox.http.delete("/_control")

    assert response.json() == (await sandbox.http.get("/_control")).json() == untouched
    assert (await sandbox.charge()).status_code == 200


@pytest.mark.parametrize(
    ("knobs", "knob", "says"),
    [
        ({"latncy_ms": 1}, "latncy_ms", "there are latency_ms"),
        ({"fail": {"code": 500}}, "fail.code", "there are status, times, applied"),
        ({"only": {"verb": "GET"}}, "only.verb", "there are method, path, op, identity"),
        ({"only": {"op": "poll"}}, "only.op", "apply"),
        ({"latency_ms": -1}, "latency_ms", "greater than or equal to 0"),
        ({"latency_ms": "5"}, "latency_ms", "integer"),
        ({"fail": {"status": 200}}, "fail.status", "greater than or equal to 400"),
        ({"refuse_cancel": True}, "refuse_cancel", "jobs"),
        ({"cancel_says": "completed"}, "cancel_says", "jobs"),
        ({"complete_after_ms": 5}, "complete_after_ms", "jobs"),
        ({"webhook": {"late_ms": 5}}, "webhook", "jobs"),
    ],
)
async def test_wrong_knob_is_named_and_changes_nothing(
    sandbox: Driver, knobs: dict[str, Any], knob: str, says: str
) -> None:
    await sandbox.turn("pay", drop_response=1)

    response = await sandbox.http.put("/_control/pay", json=knobs)

    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    (error,) = response.json()["errors"]
    assert error["knob"] == knob
    assert says in error["message"]
    assert knob in response.json()["detail"]
    assert (await sandbox.http.get("/_control")).json()["pay"] == {"drop_response": 1}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
async def test_body_that_is_no_object_is_refused(sandbox: Driver, body: bytes) -> None:
    assert (await sandbox.http.put("/_control/pay", content=body)).status_code == 422


async def test_unknown_system_is_told_which_there_are(sandbox: Driver) -> None:
    response = await sandbox.http.put("/_control/jobs", json={})

    assert response.status_code == 404
    assert response.json()["systems"] == ["pay", "crm", "mail", "hook"]
    assert "pay, crm, mail, hook" in response.json()["detail"]
