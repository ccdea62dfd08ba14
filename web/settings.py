"""What the web tier is told by its environment. Temporal's own settings follow Temporal's configuration."""

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from turnsaga import names

__all__ = ["SCRIPTED", "WebSettings"]

SCRIPTED = "script"
"""The model that replies what the user's message tells it to: for development only."""


class WebSettings(BaseSettings):
    """Settings of ``python -m web``."""

    model_config = SettingsConfigDict(env_prefix="TURNSAGA_", frozen=True, extra="ignore")

    web_host: str = Field(default="127.0.0.1", description="address to listen on; loopback in this version")
    web_port: int = Field(default=8000, ge=1, le=65535, description="port to listen on")
    database: str = Field(default="sqlite:///ledger.db", description="SQLAlchemy URL of the ledger")
    task_queue: str = Field(default=names.TASK_QUEUE, description="Temporal task queue of the workers")
    model: str = Field(
        default=SCRIPTED, min_length=1, max_length=100, description="model of turns that name none"
    )
    env: Literal["development", "production"] = Field(
        default="development", description="how logs read, and what is allowed"
    )

    @property
    def models(self) -> tuple[str, ...]:
        """The models that a start may name."""
        allowed = {self.model, SCRIPTED} if self.env == "development" else {self.model} - {SCRIPTED}
        return tuple(sorted(allowed))
