"""What a worker is told by its environment. Temporal's own settings follow Temporal's configuration."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from turnsaga import names

__all__ = ["WorkerSettings"]


class WorkerSettings(BaseSettings):
    """Settings of ``python -m workers run``."""

    model_config = SettingsConfigDict(env_prefix="TURNSAGA_", frozen=True, extra="ignore")

    env: Literal["development", "production"] = Field(
        default="development", description="how logs read, and what is allowed"
    )
    database: str = Field(default="sqlite:///ledger.db", description="SQLAlchemy URL of the ledger")
    task_queue: str = Field(default=names.TASK_QUEUE, description="Temporal task queue")
    sweep_every_s: int = Field(default=60, ge=1, description="seconds between two sweeps")
    drain_s: int = Field(default=30, ge=0, description="seconds that calls in flight get at shutdown")
    ready_file: Path | None = Field(default=None, description="a file that is written once the worker polls")
    max_cached_workflows: int = Field(default=1000, ge=0, description="workflows kept in memory")

    @property
    def sweep_every(self) -> timedelta:
        """The time between two sweeps."""
        return timedelta(seconds=self.sweep_every_s)
