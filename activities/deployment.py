"""The tools that our deployment has."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from activities.settings import VendorSettings
from activities.tools.mail import Mail
from activities.tools.messages import Messages
from activities.tools.payments import Payments
from activities.tools.records import Records
from settings.reading import SettingsRefused, variable
from turnsaga.errors import PolicyRefused
from turnsaga.tools import Tool, Tools

__all__ = ["deployment_tools"]


@asynccontextmanager
async def deployment_tools(settings: VendorSettings) -> AsyncIterator[Tools]:
    """Give the tools over the vendors that the settings name, and close their connections at the end.

    Raises:
        SettingsRefused: a policy that its tool can't have.
    """
    payments = Payments(settings.pay_url, settings.pay_key.get_secret_value())
    records = Records(settings.crm_url, settings.crm_token.get_secret_value())
    mail = Mail(settings.smtp_host, settings.smtp_port, settings.mail_from)
    messages = Messages(settings.hook_url, settings.hook_token.get_secret_value())
    try:
        yield _under_policies([*records.tools(), payments.tool(), mail.tool(), messages.tool()], settings)
    finally:
        await payments.close()
        await records.close()
        await messages.close()


def _under_policies(tools: Sequence[Tool], settings: VendorSettings) -> Tools:
    within = settings.confirm_within_s
    try:
        return Tools(
            tools,
            policies=settings.policies,
            confirm_within=None if within is None else timedelta(seconds=within),
        )
    except PolicyRefused as error:
        raise SettingsRefused(variable(VendorSettings, "policies"), str(error)) from error
