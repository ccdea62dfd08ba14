"""The tools that our deployment has."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from activities.settings import VendorSettings
from activities.tools.mail import Mail
from activities.tools.payments import Payments
from activities.tools.records import Records
from turnsaga.tools import Tools

__all__ = ["deployment_tools"]


@asynccontextmanager
async def deployment_tools(settings: VendorSettings) -> AsyncIterator[Tools]:
    """Give the tools over the vendors that the settings name, and close their connections at the end."""
    payments = Payments(settings.pay_url, settings.pay_key.get_secret_value())
    records = Records(settings.crm_url, settings.crm_token.get_secret_value())
    mail = Mail(settings.smtp_host, settings.smtp_port, settings.mail_from)
    try:
        yield Tools([*records.tools(), payments.tool(), mail.tool()])
    finally:
        await payments.close()
        await records.close()
