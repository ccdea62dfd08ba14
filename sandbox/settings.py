"""What the environment sets."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from settings.reading import Settings

Port = Annotated[int, Field(ge=0, le=65535)]


class SandboxSettings(Settings):
    """Where the sandbox listens and keeps its state; port 0 takes a free one."""

    model_config = SettingsConfigDict(env_prefix="SANDBOX_")

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: Port = Field(default=8100, description="port of PAY, CRM, HOOK and the sandbox's own routes")
    smtp_port: Port = Field(default=8101, description="port of the mail relay")
    database: Path = Field(default=Path("sandbox.db"), description="SQLite file of what really happened")
