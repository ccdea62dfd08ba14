"""The plain side: a saga as Temporal's samples write it, which commits each call when it is made.

Compensations are noted and run in reverse order when the run fails or is cancelled
(https://github.com/temporalio/samples-python). There is no ledger, and nothing is held: a mail has no
compensation, so none is noted for it.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from email.message import EmailMessage
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    import aiosmtplib
    import httpx

    from activities.settings import VendorSettings

__all__ = ["BilledSaga", "BilledTurn", "Billing"]

_SOON: Final = timedelta(seconds=30)


@dataclass
class BilledTurn:
    """A turn's start: the invoices are mailed side by side, and beside them ``charged`` is charged.

    ``record`` is read with the first calls, and updated once the user has answered.
    """

    charged: str
    invoices: list[str]
    record: str | None = None
    answer_within_s: float = 600
    deadline_s: float = 600


@dataclass
class Update:
    """An update of a record on the version that was read."""

    record: str
    version: int
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


class Billing:
    """The activities, over the same vendors."""

    def __init__(self, vendors: VendorSettings) -> None:
        self._vendors = vendors

    @activity.defn(name="billing.mail")
    async def mail(self, invoice: str) -> None:
        """Send the invoice."""
        message = EmailMessage()
        message["From"] = self._vendors.mail_from
        message["To"] = "ada@example.com"
        message["Subject"] = f"Invoice {invoice}"
        message["X-Identity"] = invoice
        message.set_content(f"Invoice {invoice}\nAmount 10.00\n")
        host, port = self._vendors.smtp_host, self._vendors.smtp_port
        await aiosmtplib.send(message, hostname=host, port=port, start_tls=False)

    @activity.defn(name="billing.charge")
    async def charge(self, invoice: str) -> str:
        """Charge for the invoice; return the charge's id."""
        form = {"amount": "1000", "currency": "eur", "customer": "cus_1", "metadata[invoice]": invoice}
        return str((await self._pay("charges", form))["id"])

    @activity.defn(name="billing.refund")
    async def refund(self, charge: str) -> None:
        """Refund the charge."""
        await self._pay("refunds", {"charge": charge})

    @activity.defn(name="billing.read")
    async def read(self, record: str) -> int:
        """Return the record's version."""
        return int((await self._crm("GET", record))["version"])

    @activity.defn(name="billing.update")
    async def update(self, update: Update) -> None:
        """Update the record, if it still has the version that was read."""
        await self._crm(
            "PATCH", update.record, headers={"If-Match": str(update.version)}, json={"fields": update.fields}
        )

    async def _pay(self, what: str, form: dict[str, str]) -> dict[str, Any]:
        key = self._vendors.pay_key.get_secret_value()
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(headers=headers, timeout=30) as http:
            return _answer(await http.post(f"{self._vendors.pay_url}/v1/{what}", data=form))

    async def _crm(self, method: str, record: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401  # httpx's
        token = self._vendors.crm_token.get_secret_value()
        more["headers"] = {"Authorization": f"Bearer {token}", **more.get("headers", {})}
        async with httpx.AsyncClient(timeout=30) as http:
            url = f"{self._vendors.crm_url}/sobjects/ticket/{record}"
            return _answer(await http.request(method, url, **more))


def _answer(answer: httpx.Response) -> dict[str, Any]:
    if 400 <= answer.status_code < 500:
        raise ApplicationError(f"refused: {answer.status_code}", non_retryable=True)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


@workflow.defn(name="BilledSaga")
class BilledSaga:
    """One turn: mail and charge as the model asks for them, hear what the user says, and go on."""

    def __init__(self) -> None:
        self._sent = 0
        self._asking = False
        self._kept: list[str] | None = None

    @workflow.signal
    def answer(self, kept: list[str]) -> None:
        """Take the user's answer: which of the mails it is to be."""
        self._kept = kept

    @workflow.update
    async def asking(self) -> None:
        """Return once all that the model asked for is done, and the user is being asked."""
        await workflow.wait_condition(lambda: self._asking)

    @workflow.run
    async def run(self, turn: BilledTurn) -> None:
        """Run to the end, or undo what can be undone."""
        charges: list[str] = []
        try:
            async with asyncio.timeout(turn.deadline_s):
                await self._forward(turn, charges)
        except BaseException as error:
            for charge in reversed(charges):
                await workflow.execute_activity_method(Billing.refund, charge, start_to_close_timeout=_SOON)
            if isinstance(error, TimeoutError):
                raise ApplicationError("the time is over") from error
            raise

    async def _forward(self, turn: BilledTurn, charges: list[str]) -> None:
        branches = {invoice: asyncio.create_task(self._branch(invoice)) for invoice in turn.invoices}
        _, version = await asyncio.gather(self._charge(turn.charged, charges), self._read(turn.record))
        await workflow.wait_condition(lambda: self._sent == len(branches))
        self._asking = True
        async with asyncio.timeout(turn.answer_within_s):
            await workflow.wait_condition(lambda: self._kept is not None)
        for invoice, branch in branches.items():
            if invoice not in (self._kept or ()):
                branch.cancel()
        if not self._kept:
            raise ApplicationError("rejected by the user")
        await asyncio.gather(*(branches[invoice] for invoice in self._kept))
        if turn.record is not None:
            update = Update(turn.record, version, {"billed": True})
            await workflow.execute_activity_method(Billing.update, update, start_to_close_timeout=_SOON)

    async def _branch(self, invoice: str) -> None:
        await workflow.execute_activity_method(Billing.mail, invoice, start_to_close_timeout=_SOON)
        self._sent += 1
        await workflow.wait_condition(lambda: self._kept is not None)

    async def _charge(self, invoice: str, charges: list[str]) -> None:
        charge = await workflow.execute_activity_method(Billing.charge, invoice, start_to_close_timeout=_SOON)
        charges.append(charge)

    async def _read(self, record: str | None) -> int:
        if record is None:
            return 0
        return await workflow.execute_activity_method(Billing.read, record, start_to_close_timeout=_SOON)
