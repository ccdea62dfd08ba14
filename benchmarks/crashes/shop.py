"""What the naive saga and the one on DBOS do at the vendors, written once for both.

An undo that finds its effect gone already is done: that is the kindest that they can be, and without it a
second refund, which PAY refuses, would leave everything before it standing.
"""

from dataclasses import dataclass
from typing import Any

import httpx

from activities.settings import VendorSettings
from settings.reading import read_settings

__all__ = ["Call", "charge", "create_record", "delete_record", "refund"]

_PATIENCE_S = 30


@dataclass
class Call:
    """One call: about which record, invoice or charge, and under which key, if any."""

    about: str
    key: str | None = None


async def create_record(call: Call) -> None:
    """Make the record."""
    _checked(await _crm("POST", call.about, {"Idempotency-Key": call.about}, {"fields": {}}))


async def delete_record(call: Call) -> None:
    """Take the record back."""
    answer = await _crm("DELETE", call.about, {"Undo-Of": call.about})
    if answer.status_code != 404:
        _checked(answer)


async def charge(call: Call) -> str:
    """Charge for the invoice; return the charge's id."""
    form = {"amount": "1000", "currency": "eur", "customer": "cus_1", "metadata[invoice]": call.about}
    return str(_checked(await _pay("charges", form, call.key))["id"])


async def refund(call: Call) -> None:
    """Refund the charge."""
    answer = await _pay("refunds", {"charge": call.about}, call.key)
    if "charge_already_refunded" not in answer.text:
        _checked(answer)


async def _pay(what: str, form: dict[str, str], key: str | None) -> httpx.Response:
    vendors = read_settings(VendorSettings)
    headers = {"Authorization": f"Bearer {vendors.pay_key.get_secret_value()}"}
    if key is not None:
        headers["Idempotency-Key"] = key
    async with httpx.AsyncClient(timeout=_PATIENCE_S) as http:
        return await http.post(f"{vendors.pay_url}/v1/{what}", data=form, headers=headers)


async def _crm(
    method: str, record: str, headers: dict[str, str], body: dict[str, Any] | None = None
) -> httpx.Response:
    # CRM honours no keys: what it is told is by what the sandbox's log knows an undo from a deletion.
    vendors = read_settings(VendorSettings)
    headers["Authorization"] = f"Bearer {vendors.crm_token.get_secret_value()}"
    async with httpx.AsyncClient(timeout=_PATIENCE_S) as http:
        url = f"{vendors.crm_url}/sobjects/ticket/{record}"
        return await http.request(method, url, headers=headers, json=body)


def _checked(answer: httpx.Response) -> dict[str, Any]:
    answer.raise_for_status()
    found: dict[str, Any] = answer.json() if answer.content else {}
    return found
