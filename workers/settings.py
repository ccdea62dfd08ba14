"""What a worker alone is told. Temporal's own settings follow Temporal's configuration."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field

from settings.shared import LedgerSettings

__all__ = ["WorkerSettings"]


class WorkerSettings(LedgerSettings):
    """Settings of ``python -m workers run``."""

    sweep_every_s: int = Field(default=60, ge=1, description="seconds between two sweeps")
    drain_s: int = Field(default=30, ge=0, description="seconds that calls in flight get at shutdown")
    ready_file: Path | None = Field(default=None, description="a file that is written once the worker polls")
    max_cached_workflows: int = Field(default=1000, ge=0, description="workflows kept in memory")

    @property
    def sweep_every(self) -> timedelta:
        """The time between two sweeps."""
        return timedelta(seconds=self.sweep_every_s)
