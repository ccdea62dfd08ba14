"""What ``turnsaga doctor`` asks of our vendors: whether address and credentials are right. It only reads."""

from activities.settings import VendorSettings
from activities.tools.mail import Mail
from activities.tools.messages import Messages
from activities.tools.payments import Payments
from activities.tools.records import Records
from turnsaga.deployment import Check, Finding

__all__ = ["vendor_checks"]


def vendor_checks(settings: VendorSettings) -> tuple[Check, ...]:
    """Return a check for each vendor that the settings name."""

    async def pay() -> Finding:
        payments = Payments(settings.pay_url, settings.pay_key.get_secret_value())
        try:
            return await payments.answers()
        finally:
            await payments.close()

    async def crm() -> Finding:
        records = Records(settings.crm_url, settings.crm_token.get_secret_value())
        try:
            return await records.answers()
        finally:
            await records.close()

    async def mail() -> Finding:
        return await Mail(settings.smtp_host, settings.smtp_port, settings.mail_from).answers()

    async def hook() -> Finding:
        messages = Messages(settings.hook_url, settings.hook_token.get_secret_value())
        try:
            return await messages.answers()
        finally:
            await messages.close()

    return (
        Check("vendors.pay", pay),
        Check("vendors.crm", crm),
        Check("vendors.mail", mail),
        Check("vendors.hook", hook),
    )
