"""What the tests drive a sandbox with."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

import aiosmtplib
import httpx
import stripe

API_KEY = "sk_test_sandbox"
DEADLINE_S = 10.0


@dataclass(frozen=True)
class Driver:
    """A sandbox that runs, and clients of its wires."""

    url: str
    smtp_port: int
    http: httpx.AsyncClient
    stripe: stripe.StripeClient

    async def turn(self, system: str, **knobs: object) -> None:
        response = await self.http.put(f"/_control/{system}", json=knobs)
        assert response.status_code == 200, response.text

    async def truth(self) -> dict[str, Any]:
        response = await self.http.get("/_truth")
        truth: dict[str, Any] = response.raise_for_status().json()
        return truth

    async def effect(self, system: str, identity: str) -> dict[str, Any] | None:
        effects = (await self.truth())["effects"]
        found: list[dict[str, Any]] = [
            effect for effect in effects if (effect["system"], effect["identity"]) == (system, identity)
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    async def counts(self, system: str, identity: str) -> tuple[int, int, int]:
        """Return how many stand, were applied, were undone."""
        effect = await self.effect(system, identity)
        return (0, 0, 0) if effect is None else (effect["standing"], effect["applied"], effect["undone"])

    async def calls(self, system: str, op: str | None = None) -> list[dict[str, Any]]:
        calls = (await self.truth())["calls"]
        return [call for call in calls if call["system"] == system and op in (None, call["op"])]

    async def act(self, **act: object) -> httpx.Response:
        return await self.http.post("/_act", json=act)

    async def charge(
        self,
        invoice: str | None = "INV-1",
        *,
        key: str = "k1",
        turn: str | None = None,
        patience_s: float = 30,
        **params: Any,
    ) -> httpx.Response:
        form: dict[str, Any] = {"amount": 4200, "currency": "eur", "customer": "cus_1", **params}
        if turn is not None:
            form["metadata[turn]"] = turn
        if invoice is not None:
            form["metadata[invoice]"] = invoice
        return await self.http.post(
            "/pay/v1/charges", data=form, headers=_pay_headers(key), timeout=patience_s
        )

    async def refund(self, charge: str, *, key: str = "r1", **params: Any) -> httpx.Response:
        form = {"charge": charge, **params}
        return await self.http.post("/pay/v1/refunds", data=form, headers=_pay_headers(key))

    async def search(self, query: str, **params: Any) -> list[str]:
        """Return the ids of the charges that a search finds."""
        response = await self.http.get(
            "/pay/v1/charges/search", params={"query": query, **params}, headers=_pay_headers(None)
        )
        assert response.status_code == 200, response.text
        return [charge["id"] for charge in response.json()["data"]]

    async def crm(
        self, method: str, path: str, *, body: object = None, key: str | None = None, **headers: str
    ) -> httpx.Response:
        """Call CRM; a header's name is written with underscores."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            names["Idempotency-Key"] = key
        names["Authorization"] = "Bearer token"
        return await self.http.request(method, f"/crm{path}", json=body, headers=names)

    async def post(
        self,
        channel: str = "ops",
        text: str = "the deploy is done",
        *,
        key: str = "h1",
        patience_s: float = 30,
    ) -> httpx.Response:
        """Post a message to a channel."""
        headers = {"Authorization": "Bearer token", "Idempotency-Key": key}
        return await self.http.post(
            f"/hook/{channel}", json={"text": text}, headers=headers, timeout=patience_s
        )

    async def mail(self, identity: str = "INV-1", *, key: str = "m1", patience_s: float = 30) -> None:
        """Send a message over SMTP."""
        await aiosmtplib.send(
            message(identity, key), hostname="127.0.0.1", port=self.smtp_port, timeout=patience_s
        )


@asynccontextmanager
async def official_client(url: str) -> AsyncIterator[stripe.StripeClient]:
    """Give the official client of a sandbox's PAY, on connections that are closed in the end."""
    http_client = stripe.HTTPXClient()
    try:
        yield _stripe_client(url, http_client)
    finally:
        await http_client.close_async()  # type: ignore[no-untyped-call]  # the vendor's


def charge_synchronously(url: str, key: str = "k1", invoice: str = "") -> stripe.Charge:
    """Charge with the official client's default transport."""
    http_client = stripe.RequestsClient()
    try:
        return _stripe_client(url, http_client).v1.charges.create(
            {"amount": 4200, "currency": "eur", "customer": "cus_1", "metadata": {"invoice": invoice}},
            {"idempotency_key": key},
        )
    finally:
        http_client.close()  # type: ignore[no-untyped-call]  # the vendor's


def message(identity: str, key: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = "billing@example.com"
    mail["To"] = "ada@example.com"
    mail["Subject"] = "Invoice"
    mail["X-Identity"] = identity
    mail["X-Idempotency-Key"] = key
    mail.set_content("You owe 42 EUR.")
    return mail


async def eventually(claim: Callable[[], Awaitable[bool]]) -> None:
    """Wait until ``claim`` holds, and fail where it doesn't in time."""
    async with asyncio.timeout(DEADLINE_S):
        while not await claim():  # noqa: ASYNC110  # another process can set no event
            await asyncio.sleep(0.02)


def _pay_headers(key: str | None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {API_KEY}"}
    return headers if key is None else {**headers, "Idempotency-Key": key}


def _stripe_client(url: str, http_client: stripe.HTTPClient) -> stripe.StripeClient:
    return stripe.StripeClient(
        API_KEY, base_addresses={"api": f"{url}/pay"}, max_network_retries=0, http_client=http_client
    )
