"""What ``turnsaga doctor`` says of our settings: what fits development, and isn't meant for production."""

from collections.abc import Callable

from activities.settings import VendorSettings
from settings.reading import variable
from turnsaga.deployment import Check, Finding
from web.identities import choose_identity
from web.identity import IdentityRefused
from web.settings import SCRIPTED, WebSettings
from workers.settings import WorkerSettings

__all__ = ["setting_checks"]


def setting_checks(settings: WorkerSettings, vendors: VendorSettings, web: WebSettings) -> tuple[Check, ...]:
    """Return a check for each setting that is judged."""
    return (
        _check("settings.env", lambda: _env(settings)),
        _check("settings.database", lambda: _database(settings)),
        _check("settings.model", lambda: _model(web)),
        _check("settings.identity", lambda: _identity(web)),
        _check("settings.vendors", lambda: _vendors(settings, vendors)),
    )


def _check(name: str, judge: Callable[[], Finding]) -> Check:
    async def run() -> Finding:
        return judge()

    return Check(name, run)


def _env(settings: WorkerSettings) -> Finding:
    if settings.env == "development":
        return Finding.ok("development: readable logs, the scripted model, no bearer tokens asked for")
    return Finding.ok("production")


def _database(settings: WorkerSettings) -> Finding:
    if settings.env == "production" and _is_sqlite(settings):
        return Finding.warn(
            "production on SQLite: every process has to run on this one machine",
            "set TURNSAGA_DATABASE to a Postgres, unless one machine is meant",
        )
    return Finding.ok("SQLite" if _is_sqlite(settings) else "Postgres")


def _is_sqlite(settings: WorkerSettings) -> bool:
    return settings.database.get_secret_value().startswith("sqlite")


def _model(web: WebSettings) -> Finding:
    if web.env == "production" and web.model == SCRIPTED:
        return Finding.fail(
            "production with the scripted model: no turn can be started without naming another",
            "set TURNSAGA_MODEL, such as anthropic:…, and the vendor's key",
        )
    return Finding.ok(web.model)


def _identity(web: WebSettings) -> Finding:
    try:
        choose_identity(web)
    except IdentityRefused as error:
        return Finding.fail(f"no web tier starts with these settings: {error}", "set them as it says")
    if web.names_tokens:
        return Finding.ok("bearer tokens")
    return Finding.ok("the development identity, on loopback")


def _vendors(settings: WorkerSettings, vendors: VendorSettings) -> Finding:
    if settings.env == "development":
        return Finding.ok("not judged in development")
    given = {"pay_key": vendors.pay_key, "crm_token": vendors.crm_token, "hook_token": vendors.hook_token}
    sandbox = [
        variable(VendorSettings, name)
        for name, value in given.items()
        if value == VendorSettings.model_fields[name].default
    ]
    if sandbox:
        return Finding.fail("production with the sandbox's credentials", f"set {', '.join(sandbox)}")
    if vendors.pay_key.get_secret_value().startswith(("sk_test_", "rk_test_")):
        return Finding.warn(
            "production with PAY's test key: no money moves", "set TURNSAGA_PAY_KEY to a live one"
        )
    return Finding.ok("credentials of their own")
