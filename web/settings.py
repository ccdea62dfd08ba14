"""What the web tier alone is told. Temporal's own settings follow Temporal's configuration."""

from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from settings.shared import LedgerSettings

__all__ = ["SCRIPTED", "WebSettings"]

SCRIPTED = "script"
"""The model that replies what the user's message tells it to: for development only."""


def _listed(given: object) -> object:
    return tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else given


_Given = Annotated[str, Field(min_length=1)]
# NoDecode: a list is what stands between commas, not JSON.
_Listed = Annotated[tuple[_Given, ...], NoDecode, BeforeValidator(_listed)]


class WebSettings(LedgerSettings):
    """Settings of ``python -m web``."""

    web_host: str = Field(
        default="127.0.0.1", description="address to listen on; loopback without bearer tokens"
    )
    web_port: int = Field(default=8000, ge=1, le=65535, description="port to listen on")
    model: str = Field(
        default=SCRIPTED, min_length=1, max_length=100, description="model of turns that name none"
    )
    allowed_hosts: _Listed | None = Field(
        default=None, description="host names that are served; with bearer tokens only, every one if not set"
    )
    jwt_issuer: _Given | None = Field(default=None, description="iss of bearer tokens")
    jwt_audience: _Given | None = Field(default=None, description="aud that bearer tokens must name")
    jwt_keys: SecretStr | None = Field(
        default=None, description="JWK set that tokens are checked with, or its file"
    )
    jwt_jwks_url: _Given | None = Field(default=None, description="where the issuer serves its JWK set")
    jwt_algorithms: _Listed = Field(
        default=("RS256", "ES256", "EdDSA"), description="signatures that are accepted"
    )
    jwt_leeway_s: int = Field(default=30, ge=0, le=600, description="how far clocks may differ")
    jwt_claim_tenant: _Given = Field(default="tenant", description="claim that holds the tenant")
    jwt_claim_user: _Given = Field(default="sub", description="claim that holds the user")
    jwt_claim_role: _Given = Field(default="role", description="claim that holds the role")

    starts_per_min: int = Field(
        default=30, ge=0, description="turns that a user may start in a minute, in production; 0: no limit"
    )
    writes_per_min: int = Field(
        default=120, ge=0, description="as starts, for other changes; stopping a turn isn't limited"
    )
    reads_per_min: int = Field(default=600, ge=0, description="as starts, for reads and opened streams")

    @property
    def names_tokens(self) -> bool:
        """Whether anything about bearer tokens is set: half of it is a mistake, and never development."""
        return any(name.startswith("jwt_") for name in self.model_fields_set)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that a start may name."""
        allowed = {self.model, SCRIPTED} if self.env == "development" else {self.model} - {SCRIPTED}
        return tuple(sorted(allowed))
