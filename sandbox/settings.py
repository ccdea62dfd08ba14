"""What the environment sets."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

Port = Annotated[int, Field(ge=0, le=65535)]


class SandboxSettings(BaseSettings):
    """Where the sandbox listens and keeps its state; port 0 takes a free one."""

    model_config = SettingsConfigDict(env_prefix="SANDBOX_", frozen=True)

    host: str = Field(default="127.0.0.1", min_length=1)
    port: Port = 8100
    smtp_port: Port = 8101
    database: Path = Path("sandbox.db")
