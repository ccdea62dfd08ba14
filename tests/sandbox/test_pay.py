"""PAY speaks Stripe's wire, to the official client and to others."""

import asyncio
from typing import Any

import httpx
import pytest
import stripe

from tests.sandbox.driver import API_KEY, Driver, charge_synchronously, eventually

# The official client hands httpx its form as bytes in ``data``, which httpx deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


async def test_official_client_charges_finds_and_refunds(sandbox: Driver) -> None:
    client = sandbox.stripe

    charge = await client.v1.charges.create_async(
        {"amount": 4200, "currency": "EUR", "customer": "cus_1", "metadata": {"invoice": "INV-7"}},
        {"idempotency_key": "k7"},
    )
    found = await client.v1.charges.search_async({"query": "metadata['invoice']:'INV-7'"})
    refund = await client.v1.refunds.create_async(
        {"charge": charge.id, "reason": "requested_by_customer"}, {"idempotency_key": "k7_undo"}
    )
    after = await client.v1.charges.retrieve_async(charge.id)
    refunds = await client.v1.refunds.list_async({"charge": charge.id})

    assert (charge.amount, charge.currency, charge.status) == (4200, "eur", "succeeded")
    assert [one.id for one in found.data] == [charge.id]
    assert found.data[0].metadata["invoice"] == "INV-7"
    assert (refund.amount, refund.charge, refund.status) == (4200, charge.id, "succeeded")
    assert (after.refunded, after.amount_refunded) == (True, 4200)
    assert [one.id for one in refunds.data] == [refund.id]
    effect = await sandbox.effect("pay", "INV-7")
    assert effect is not None
    assert (effect["standing"], effect["applied"], effect["undone"]) == (0, 1, 1)
    assert effect["keys"] == ["k7"]
    assert [call["key"] for call in await sandbox.calls("pay", "apply")] == ["k7"]
    assert [call["key"] for call in await sandbox.calls("pay", "undo")] == ["k7_undo"]


async def test_official_synchronous_client_works_too(sandbox: Driver) -> None:
    charge = await asyncio.to_thread(charge_synchronously, sandbox.url)

    # Without an invoice the charge's own id is its identity.
    assert await sandbox.counts("pay", charge.id) == (1, 1, 0)


async def test_same_key_and_parameters_replay_the_first_answer(sandbox: Driver) -> None:
    first = await sandbox.charge()
    second = await sandbox.charge()

    assert second.json() == first.json()
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)
    calls = await sandbox.calls("pay", "apply")
    assert [call["answered"] for call in calls] == [True, True]
    assert [call["applied_at"] is None for call in calls] == [False, True]


async def test_same_key_with_other_parameters_is_refused(sandbox: Driver) -> None:
    await sandbox.charge(key="k1")

    with pytest.raises(stripe.IdempotencyError):
        await sandbox.stripe.v1.charges.create_async(
            {"amount": 4300, "currency": "eur", "customer": "cus_1", "metadata": {"invoice": "INV-1"}},
            {"idempotency_key": "k1"},
        )
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)


async def test_key_of_a_charge_is_refused_for_a_refund(sandbox: Driver) -> None:
    charge = (await sandbox.charge(key="k1")).json()

    response = await sandbox.refund(charge["id"], key="k1")

    assert response.json()["error"]["type"] == "idempotency_error"
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)


async def test_key_past_its_lifetime_charges_again(sandbox: Driver) -> None:
    await sandbox.charge()
    await sandbox.turn("pay", key_ttl_s=0)

    second = await sandbox.charge()

    assert "idempotent-replayed" not in second.headers
    assert await sandbox.counts("pay", "INV-1") == (2, 2, 0)


async def test_second_request_waits_for_the_first_with_its_key(sandbox: Driver) -> None:
    await sandbox.turn("pay", latency_ms=500)
    loop = asyncio.get_running_loop()

    started = loop.time()
    running = asyncio.create_task(sandbox.charge())
    await eventually(lambda: _applied(sandbox))
    await sandbox.turn("pay")
    second = await sandbox.charge()
    waited_s = loop.time() - started
    first = await running

    assert waited_s >= 0.5
    assert first.json() == second.json()
    assert [("idempotent-replayed" in answer.headers) for answer in (first, second)] == [False, True]
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)


async def test_second_request_conflicts_while_the_first_runs(sandbox: Driver) -> None:
    await sandbox.turn("pay", conflict_while_running=True, latency_ms=1500)

    running = asyncio.create_task(sandbox.charge())
    await eventually(lambda: _applied(sandbox))
    conflict = await sandbox.charge()
    other_parameters = await sandbox.charge(amount=1)
    first = await running
    await sandbox.turn("pay")
    replay = await sandbox.charge()

    assert conflict.status_code == 409
    assert conflict.json()["error"]["code"] == "idempotency_key_in_use"
    assert other_parameters.status_code == 400
    assert first.status_code == 200
    assert replay.json() == first.json()
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)


async def _applied(sandbox: Driver) -> bool:
    return await sandbox.counts("pay", "INV-1") == (1, 1, 0)


async def test_remembered_error_is_replayed(sandbox: Driver) -> None:
    await sandbox.turn("pay", remember_errors=True, fail={"status": 500, "times": 1, "applied": False})

    first = await sandbox.charge()
    second = await sandbox.charge()

    assert (first.status_code, second.status_code) == (500, 500)
    assert second.headers["idempotent-replayed"] == "true"
    assert await sandbox.counts("pay", "INV-1") == (0, 0, 0)


async def test_remembered_error_of_an_applied_call_hides_the_charge(sandbox: Driver) -> None:
    await sandbox.turn("pay", remember_errors=True, fail={"status": 500, "times": 1, "applied": True})

    answers = [await sandbox.charge(), await sandbox.charge()]

    assert [answer.status_code for answer in answers] == [500, 500]
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)


@pytest.mark.parametrize("remember_errors", [True, False])
async def test_applied_refusal_below_500_is_not_remembered(sandbox: Driver, *, remember_errors: bool) -> None:
    fail = {"status": 429, "times": 1, "applied": True}
    await sandbox.turn("pay", remember_errors=remember_errors, fail=fail)

    answers = [await sandbox.charge(), await sandbox.charge()]

    assert [answer.status_code for answer in answers] == [429, 200]
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)


@pytest.mark.parametrize(
    ("params", "param", "code"),
    [
        ({"amount": 0}, "amount", "parameter_invalid_integer"),
        ({"amount": -5}, "amount", "parameter_invalid_integer"),
        ({"amount": "42.00"}, "amount", "parameter_invalid_integer"),
        ({"amount": ""}, "amount", "parameter_missing"),
        ({"amount": 100_000_000}, "amount", "amount_too_large"),
        ({"currency": "euro"}, "currency", None),
        ({"customer": ""}, "customer", "parameter_missing"),
        ({"colour": "red"}, "colour", "parameter_unknown"),
        ({"metadata": "x"}, "metadata", "parameter_invalid_object"),
        ({"metadata[note]": "x" * 501}, "metadata", "metadata_too_large"),
        ({"a[b][c]": "x"}, "a[b][c]", "parameter_unknown"),
    ],
)
async def test_invalid_charge_is_refused(
    sandbox: Driver, params: dict[str, Any], param: str, code: str | None
) -> None:
    response = await sandbox.charge(**params)

    error = response.json()["error"]
    assert response.status_code == 400
    assert response.headers["request-id"].startswith("req_")
    assert (error["type"], error["param"], error.get("code")) == ("invalid_request_error", param, code)
    assert await sandbox.counts("pay", "INV-1") == (0, 0, 0)


async def test_refused_charge_leaves_its_key_free(sandbox: Driver) -> None:
    await sandbox.charge(amount=0)

    assert (await sandbox.charge()).status_code == 200


@pytest.mark.parametrize("authorization", [None, "Bearer pk_test", "Basic sk_test"])
async def test_call_without_a_secret_key_is_refused(sandbox: Driver, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}

    response = await sandbox.http.post("/pay/v1/charges", data={"amount": 1}, headers=headers)

    assert response.status_code == 401
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_refund_of_a_refunded_charge_is_refused(sandbox: Driver) -> None:
    charge = (await sandbox.charge()).json()
    await sandbox.refund(charge["id"], key="r1")

    with pytest.raises(stripe.InvalidRequestError) as refused:
        await sandbox.stripe.v1.refunds.create_async({"charge": charge["id"]}, {"idempotency_key": "r2"})
    assert refused.value.code == "charge_already_refunded"
    assert await sandbox.counts("pay", "INV-1") == (0, 1, 1)


async def test_charge_stands_until_all_of_it_is_refunded(sandbox: Driver) -> None:
    charge = (await sandbox.charge()).json()

    part = await sandbox.refund(charge["id"], key="r1", amount=4000)
    after_part = await sandbox.counts("pay", "INV-1")
    too_much = await sandbox.refund(charge["id"], key="r2", amount=201)
    rest = await sandbox.refund(charge["id"], key="r3")

    assert part.json()["amount"] == 4000
    assert after_part == (1, 1, 0)
    assert too_much.json()["error"]["param"] == "amount"
    assert rest.json()["amount"] == 200
    assert await sandbox.counts("pay", "INV-1") == (0, 1, 1)


async def test_refund_undoes_only_its_own_charge(sandbox: Driver) -> None:
    first = (await sandbox.charge(key="k1")).json()
    await sandbox.charge(key="k2")

    await sandbox.refund(first["id"])

    assert await sandbox.counts("pay", "INV-1") == (1, 2, 1)


@pytest.mark.parametrize("path", ["/v1/charges/ch_none", "/v1/refunds/re_none", "/v1/nothing"])
async def test_unknown_object_is_not_found(sandbox: Driver, path: str) -> None:
    response = await sandbox.http.get(f"/pay{path}", headers={"Authorization": f"Bearer {API_KEY}"})

    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_refund_of_an_unknown_charge_is_not_found(sandbox: Driver) -> None:
    response = await sandbox.refund("ch_none")

    assert response.status_code == 404
    assert response.json()["error"]["code"] == "resource_missing"


async def test_search_wants_all_its_terms(sandbox: Driver) -> None:
    one = (await sandbox.charge("INV-1", key="k1", turn="t'1")).json()
    await sandbox.charge("INV-1", key="k2", turn="t2")
    await sandbox.charge("INV-2", key="k3", turn="t'1")

    found = await sandbox.search(r"""metadata['invoice']:'INV-1' AND metadata["turn"]:'t\'1'""")

    assert found == [one["id"]]


async def test_search_reads_fields(sandbox: Driver) -> None:
    one = (await sandbox.charge("INV-1", key="k1", amount=7)).json()
    await sandbox.charge("INV-2", key="k2", amount=8)

    assert await sandbox.search("amount:7 and currency:'EUR' AND status:\"succeeded\"") == [one["id"]]


@pytest.mark.parametrize(
    "query",
    [
        "metadata['invoice']",
        "metadata['invoice']:'INV-1' OR status:'succeeded'",
        "metadata['invoice']:'INV-1' AND",
        "metadata['invoice]:'INV-1'",
        "password:'x'",
        "customer~'cus'",
    ],
)
async def test_search_that_is_not_understood_is_refused(sandbox: Driver, query: str) -> None:
    with pytest.raises(stripe.InvalidRequestError) as refused:
        await sandbox.stripe.v1.charges.search_async({"query": query})
    assert refused.value.param == "query"


async def test_official_client_pages_through_lists(sandbox: Driver) -> None:
    made = [(await sandbox.charge(f"INV-{n}", key=f"k{n}")).json()["id"] for n in range(5)]
    await sandbox.charge("INV-9", key="k9", customer="cus_9")
    client = sandbox.stripe

    page = await client.v1.charges.list_async({"limit": 2, "customer": "cus_1"})
    listed = [charge.id async for charge in page.auto_paging_iter()]
    search = await client.v1.charges.search_async({"query": "customer:'cus_1'", "limit": 2})
    searched = [charge.id async for charge in search.auto_paging_iter()]

    assert listed == made[::-1]
    assert searched == made[::-1]


async def test_refunds_are_listed_by_page(sandbox: Driver) -> None:
    charge = (await sandbox.charge()).json()["id"]
    made = [(await sandbox.refund(charge, key=f"r{n}", amount=10)).json()["id"] for n in range(3)]

    page = await sandbox.stripe.v1.refunds.list_async({"limit": 2, "charge": charge})

    assert [refund.id async for refund in page.auto_paging_iter()] == made[::-1]


async def test_lookup_lags_behind_the_effect(sandbox: Driver) -> None:
    charge = (await sandbox.charge()).json()["id"]
    headers = {"Authorization": f"Bearer {API_KEY}"}
    query = "metadata['invoice']:'INV-1'"

    await sandbox.turn("pay", read_lag_ms=60_000)
    lagging = await sandbox.search(query)
    listed = (await sandbox.http.get("/pay/v1/charges", headers=headers)).json()["data"]
    by_id = await sandbox.http.get(f"/pay/v1/charges/{charge}", headers=headers)
    await sandbox.turn("pay", read_lag_ms=1)

    assert (lagging, listed, by_id.status_code) == ([], [], 200)
    await eventually(lambda: _found(sandbox, query))


async def _found(sandbox: Driver, query: str) -> bool:
    return bool(await sandbox.search(query))


async def test_dropped_answer_is_a_connection_error_to_the_official_client(sandbox: Driver) -> None:
    await sandbox.turn("pay", drop_response=2)
    client = sandbox.stripe
    charge: stripe.params.ChargeCreateParams = {
        "amount": 4200,
        "currency": "eur",
        "customer": "cus_1",
        "metadata": {"invoice": "INV-1"},
    }

    with pytest.raises(stripe.APIConnectionError):
        await client.v1.charges.create_async(charge, {"idempotency_key": "k1"})
    with pytest.raises(stripe.APIConnectionError):
        await asyncio.to_thread(charge_synchronously, sandbox.url, "k1", "INV-1")
    replay = await client.v1.charges.create_async(charge, {"idempotency_key": "k1"})

    assert replay.last_response is not None
    headers = httpx.Headers(dict(replay.last_response.headers or {}))
    assert headers["idempotent-replayed"] == "true"
    assert [call["answered"] for call in await sandbox.calls("pay")] == [False, False, True]
    assert await sandbox.counts("pay", "INV-1") == (1, 1, 0)
