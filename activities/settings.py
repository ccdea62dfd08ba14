"""Where the vendors are; the defaults are the sandbox's of ``make dev``."""

from pydantic import Field, SecretStr

from settings.shared import ProductSettings

__all__ = ["VendorSettings"]


class VendorSettings(ProductSettings):
    """Addresses and credentials of PAY, CRM, MAIL and HOOK, and when effects there are committed."""

    policies: dict[str, str] = Field(
        default_factory=dict,
        description="JSON object: when which tool commits, instead of what it declares",
    )
    confirm_within_s: int | None = Field(
        default=None, ge=1, le=86_400, description="seconds that users are asked for a confirmation"
    )

    pay_url: str = Field(default="http://127.0.0.1:8100/pay", description="Stripe's API, or a stand-in")
    pay_key: SecretStr = Field(default=SecretStr("sk_test_sandbox"), description="PAY's secret key")
    crm_url: str = Field(default="http://127.0.0.1:8100/crm", description="the CRM's REST API")
    crm_token: SecretStr = Field(default=SecretStr("crm_sandbox"), description="the CRM's bearer token")
    smtp_host: str = Field(default="127.0.0.1", description="the mail relay's host")
    smtp_port: int = Field(default=8101, ge=1, le=65535, description="the mail relay's port")
    mail_from: str = Field(default="billing@example.com", description="the sender of invoices")
    hook_url: str = Field(
        default="http://127.0.0.1:8100/hook",
        description="the chat's webhook; a message is posted to its channel's name below it",
    )
    hook_token: SecretStr = Field(
        default=SecretStr("hook_sandbox"), description="HOOK's bearer token; empty where it takes none"
    )
