"""``send_invoice_email``: real SMTP. What was sent can't be called back."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Annotated, Final

import aiosmtplib
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from turnsaga.deployment import Finding
from turnsaga.errors import NotApplied, OutcomeUnknown
from turnsaga.tools import Call, Committed, EffectTool, JsonObject, Limits, Prepared

__all__ = ["Mail", "SendInvoiceEmail"]

Line = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
_ADDRESS: Final = r"^[^@\s\x00-\x1f\x7f<>(),;:\\\"]{1,64}@[A-Za-z0-9.-]{1,190}$"


class SendInvoiceEmail(BaseModel):
    """Arguments of ``send_invoice_email``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: Annotated[str, StringConstraints(pattern=_ADDRESS)]
    invoice: Line
    amount: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,12}([.,][0-9]{1,3})?( [A-Z]{3})?$")]
    note: Annotated[str, Field(max_length=10_000)] | None = None


class Mail:
    """MAIL's one call."""

    def __init__(self, host: str, port: int, sender: str) -> None:
        self._host = host
        self._port = port
        self._sender = sender

    async def answers(self) -> Finding:
        """Greet the relay and leave. Sends nothing."""
        smtp = aiosmtplib.SMTP(hostname=self._host, port=self._port, timeout=5, use_tls=False)
        try:
            await smtp.connect()
            await smtp.ehlo()
        except (aiosmtplib.SMTPException, OSError) as error:
            return Finding.fail(
                f"the relay doesn't answer as one ({_code(error)})",
                "see TURNSAGA_SMTP_HOST and TURNSAGA_SMTP_PORT",
            )
        finally:
            smtp.close()
        return Finding.ok("the relay answers; whether it takes a mail is known when one is sent")

    def tool(self) -> EffectTool[SendInvoiceEmail]:
        """Return ``send_invoice_email``."""
        return EffectTool(
            name="send_invoice_email",
            description="Send an invoice by e-mail. It can't be called back.",
            arguments=SendInvoiceEmail,
            system="mail",
            says="mail {invoice} over {amount} to {to}",
            summary="mail {invoice} over {amount}",
            prepare=self.prepare,
            commit=self.send,
            irreversible_because="a mail that was sent can't be called back",
            identity=lambda arguments: arguments.invoice,
            # Relays take their time to greet and to look at an address.
            limits=Limits(send_by=timedelta(seconds=20), landing_window=timedelta(seconds=60)),
        )

    async def prepare(self, arguments: SendInvoiceEmail, call: Call) -> Prepared:
        """Write the whole message now: what is sent is what is stored, to the letter."""
        message = EmailMessage(policy=SMTP)
        message["From"] = self._sender
        message["To"] = arguments.to
        message["Subject"] = f"Invoice {arguments.invoice}"
        message["Date"] = format_datetime(datetime.now(UTC))
        message["Message-ID"] = f"<{call.effect_key}@turnsaga.invalid>"
        message["X-Identity"] = arguments.invoice
        message["X-Idempotency-Key"] = call.effect_key
        text = f"Invoice {arguments.invoice}\nAmount {arguments.amount}\n"
        message.set_content(text + (f"\n{arguments.note}\n" if arguments.note else ""), cte="base64")
        return Prepared(
            {"from": self._sender, "to": arguments.to, "message": message.as_bytes().decode("ascii")}
        )

    async def send(self, request: JsonObject, call: Call) -> Committed:
        """Hand the message to the relay. Until its text is sent, a failure proves that nothing went out."""
        smtp = aiosmtplib.SMTP(
            hostname=self._host, port=self._port, timeout=call.remaining.total_seconds(), use_tls=False
        )
        try:
            # Past its time to send, others may already have judged that the mail can't go out any more.
            async with asyncio.timeout(call.send_within.total_seconds()):
                await smtp.connect()
                await smtp.mail(request["from"])
                await smtp.rcpt(request["to"])
        except (aiosmtplib.SMTPException, OSError) as error:
            smtp.close()
            raise NotApplied(f"the relay didn't take the mail ({_code(error)})") from None
        try:
            answer = await smtp.data(str(request["message"]).encode("ascii"))
        except aiosmtplib.SMTPResponseException as error:
            smtp.close()
            # -1 is the client's own code for an answer that it couldn't read.
            if error.code < 400:
                raise OutcomeUnknown("the relay's answer to the mail can't be read") from None
            raise NotApplied(f"the relay refused the mail ({error.code})") from None
        except (aiosmtplib.SMTPException, OSError) as error:
            smtp.close()
            raise OutcomeUnknown(
                f"the connection was lost after the mail was sent ({_code(error)})"
            ) from None
        # The relay has said that the mail is its own now; what happens to the connection is no matter.
        smtp.close()
        return Committed(
            receipt={"code": answer.code, "answer": answer.message[:200]}, result={"sent_to": request["to"]}
        )


def _code(error: Exception) -> str:
    return str(error.code) if isinstance(error, aiosmtplib.SMTPResponseException) else type(error).__name__
