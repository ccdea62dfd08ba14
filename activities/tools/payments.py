"""``charge_card``: Stripe's API through its official client."""

from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Final

import httpx
import stripe
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from activities.tools._proofs import lost
from turnsaga.deployment import Finding
from turnsaga.errors import UndoRefused
from turnsaga.outcomes import Answer, learned, read_status
from turnsaga.tools import (
    Call,
    Committed,
    EffectTool,
    Found,
    JsonObject,
    Keyed,
    Limits,
    Missing,
    Prepared,
    SearchResult,
    Undone,
)

__all__ = ["ChargeCard", "Payments"]

# Source: https://docs.stripe.com/currencies#zero-decimal and #three-decimal
_ZERO_DECIMAL: Final = frozenset(
    "BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF UGX VND VUV XAF XOF XPF".split()  # noqa: SIM905  # reads as the vendor's list
)
_THREE_DECIMAL: Final = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})

Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class ChargeCard(BaseModel):
    """Arguments of ``charge_card``. 10, 10.0 and "10.00" EUR are one amount."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    customer: Name
    amount: Annotated[Decimal, Field(gt=0, max_digits=12)]
    currency: Annotated[str, StringConstraints(to_upper=True, pattern=r"^[A-Za-z]{3}$")]
    invoice: Name

    @model_validator(mode="after")
    def _in_the_currency_s_units(self) -> "ChargeCard":
        exact = self.amount.quantize(Decimal(1).scaleb(-exponent(self.currency)))
        if exact != self.amount:
            raise ValueError(f"{self.currency} has {exponent(self.currency)} decimals")
        # Written with the currency's decimals, so that equal amounts make equal keys.
        object.__setattr__(self, "amount", exact)
        return self


def exponent(currency: str) -> int:
    """Return how many decimals the currency's amounts have."""
    return 0 if currency in _ZERO_DECIMAL else 3 if currency in _THREE_DECIMAL else 2


class Payments:
    """PAY's side-effecting calls."""

    def __init__(self, url: str, key: str) -> None:
        # Shorter for a connection than send_by: a charge mustn't leave once others count on it not to.
        self._http = stripe.HTTPXClient(timeout=httpx.Timeout(30, connect=4, pool=4))
        self._client = stripe.StripeClient(
            key,
            base_addresses={"api": url},
            # The ledger counts attempts; a client that retries by itself would hide some from it.
            max_network_retries=0,
            http_client=self._http,
        )

    async def close(self) -> None:
        """Close the connections to PAY."""
        await self._http.close_async()  # type: ignore[no-untyped-call]  # the client ships no types here

    async def answers(self) -> Finding:
        """Ask PAY the question that a look-up asks, about a charge that there isn't. Changes nothing."""
        try:
            await self._client.v1.charges.search_async(
                {"query": "metadata['turnsaga_key']:'none'", "limit": 1}
            )
        except stripe.AuthenticationError:
            return Finding.fail("PAY refuses the key", "set TURNSAGA_PAY_KEY to a secret key of this account")
        except stripe.PermissionError:
            return Finding.fail(
                "PAY's key may not search charges", "allow the restricted key to read and write charges"
            )
        except stripe.APIConnectionError as error:
            return Finding.fail(
                f"PAY can't be reached ({type(error.__cause__ or error).__name__})", "see TURNSAGA_PAY_URL"
            )
        except stripe.StripeError as error:
            return Finding.fail(
                f"PAY answers {error.http_status or type(error).__name__}",
                "see TURNSAGA_PAY_URL, and PAY's status",
            )
        return Finding.ok("PAY takes the key, and can be asked for charges")

    def tool(self) -> EffectTool[ChargeCard]:
        """Return ``charge_card``."""
        return EffectTool(
            name="charge_card",
            description="Charge a customer's card for an invoice.",
            arguments=ChargeCard,
            system="pay",
            says="charge {amount} {currency} for {invoice}",
            prepare=self.prepare,
            commit=self.charge,
            lookup=self.find,
            reversible=True,
            compensate=self.refund,
            check_undone=self.is_refunded,
            undo_says="refund {amount} {currency}, {invoice}",
            undo_repeat=Keyed(timedelta(hours=24)),
            # Source: https://docs.stripe.com/api/idempotent_requests, "at least 24 hours"
            repeat=Keyed(timedelta(hours=24)),
            identity=lambda arguments: arguments.invoice,
            limits=Limits(landing_window=timedelta(seconds=10)),
        )

    async def prepare(self, arguments: ChargeCard, call: Call) -> Prepared:
        """Build the request; the key travels in its metadata too, so that the charge can be found by it."""
        minor = int(arguments.amount.scaleb(exponent(arguments.currency)))
        return Prepared(
            {
                "customer": arguments.customer,
                "amount": minor,
                "currency": arguments.currency.lower(),
                "metadata": {"invoice": arguments.invoice, "turnsaga_key": call.effect_key},
            }
        )

    async def charge(self, request: JsonObject, call: Call) -> Committed:
        """Charge, under the effect's key."""
        try:
            charge = await self._client.v1.charges.create_async(
                dict(request),  # type: ignore[arg-type]  # the stored request is this call's own parameters
                {"idempotency_key": call.key},
            )
        except stripe.StripeError as error:
            raise _judged(error) from None
        return Committed(receipt={"charge": charge.id}, result={"charge": charge.id, "status": charge.status})

    async def find(self, request: JsonObject, call: Call) -> SearchResult:  # noqa: ARG002  # the key is enough
        """Ask by the key in the metadata. The search lags behind: "not found" counts only after a while."""
        query = f"metadata['turnsaga_key']:'{call.effect_key}'"
        found = await self._client.v1.charges.search_async({"query": query, "limit": 1})
        if not found.data:
            return Missing()
        charge = found.data[0]
        return Found(receipt={"charge": charge.id}, result={"charge": charge.id, "status": charge.status})

    async def refund(self, request: JsonObject, receipt: JsonObject, call: Call) -> Undone:  # noqa: ARG002  # the receipt names the charge
        """Refund the whole charge; one that is refunded already counts as undone."""
        charge = _charge(receipt)
        try:
            refund = await self._client.v1.refunds.create_async(
                {"charge": charge, "metadata": {"turnsaga_key": call.key}}, {"idempotency_key": call.key}
            )
        except stripe.InvalidRequestError as error:
            if error.code == "charge_already_refunded":
                return Undone({"charge": charge, "already": "refunded"})
            raise UndoRefused(f"PAY refuses the refund ({error.code or error.http_status})") from None
        except stripe.StripeError as error:
            raise _judged(error) from None
        return Undone({"refund": refund.id})

    async def is_refunded(self, request: JsonObject, receipt: JsonObject, call: Call) -> bool:  # noqa: ARG002  # as above
        """Read the charge back."""
        charge = await self._client.v1.charges.retrieve_async(_charge(receipt))
        return bool(charge.refunded)


def _charge(receipt: JsonObject) -> str:
    charge: Any = receipt.get("charge")
    if not isinstance(charge, str):
        raise UndoRefused("the receipt names no charge")
    return charge


def _judged(error: stripe.StripeError) -> Exception:
    """Say what an error proves: a refusal that nothing was applied; silence and a 5xx nothing at all."""
    status = error.http_status
    if isinstance(error, stripe.IdempotencyError):
        return learned(Answer.OTHER_REQUEST, "PAY")
    if status is None:
        cause = error.__cause__
        return learned(lost(cause), "PAY", type(cause or error).__name__)
    if status == 409:
        return learned(Answer.IN_PROGRESS, "PAY")
    if 200 <= status < 300:
        return learned(Answer.UNREADABLE, "PAY")
    replayed = (error.headers or {}).get("idempotent-replayed") == "true"
    return learned(read_status(status, replayed=replayed), "PAY", error.code or status)
