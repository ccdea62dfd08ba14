"""What several processes of the product read, declared once."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from settings.reading import Settings, SettingsRefused, variable
from turnsaga import names
from turnsaga.errors import InvalidRequest
from turnsaga.store import SqlStore

__all__ = ["LedgerSettings", "ProductSettings", "ledger"]

_HOW: Final = "give sqlite:////path/ledger.db or postgresql://user:password@host/name"


def _checked(given: SecretStr) -> SecretStr:
    try:
        url = make_url(given.get_secret_value())
    except (ArgumentError, ValueError):
        raise ValueError(f"not a database URL; {_HOW}") from None
    # The address that logs and errors show hides the password before the @, and nothing of the query.
    if "password" in url.query:
        raise ValueError("has its password in the query, where it would be logged; put it before the @")
    return given


class ProductSettings(Settings):
    """The base of the product's settings classes."""

    model_config = SettingsConfigDict(env_prefix="TURNSAGA_")


class LedgerSettings(ProductSettings):
    """What every process has to be told that works on turns. How Temporal is reached is Temporal's own."""

    env: Literal["development", "production"] = Field(
        default="development", description="how logs read, and what is allowed"
    )
    database: Annotated[SecretStr, AfterValidator(_checked)] = Field(
        default=SecretStr("sqlite:///ledger.db"), description="SQLAlchemy URL of the ledger"
    )
    task_queue: str = Field(default=names.TASK_QUEUE, description="Temporal task queue of the workers")


def ledger(settings: LedgerSettings) -> SqlStore:
    """Return the ledger that the settings name, not opened yet.

    Raises:
        SettingsRefused: it can't live in such a database.
    """
    try:
        return SqlStore(settings.database.get_secret_value())
    except InvalidRequest as error:
        reason = str(error).removeprefix(f"{error.field}: ")
        raise SettingsRefused(variable(type(settings), "database"), reason) from error
