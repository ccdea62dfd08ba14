"""What Temporal's core, which is not Python, has to say: through the same handler as all else."""

import logging
from typing import Final, Literal

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

__all__ = ["forward_engine_logs"]

_LOGGER: Final = "temporalio.core"


def forward_engine_logs(env: Literal["development", "production"]) -> None:
    """Have Temporal's core log as this process does. Meant for its start, before a client connects.

    By itself it writes lines of its own shape. Its fields are left out in production: those of a failed
    workflow task hold the whole failure.
    """
    Runtime.set_default(
        Runtime(
            telemetry=TelemetryConfig(
                logging=LoggingConfig(
                    filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
                    forwarding=LogForwardingConfig(
                        logger=logging.getLogger(_LOGGER),
                        append_target_to_name=False,
                        append_log_fields_to_message=env == "development",
                    ),
                )
            )
        ),
        error_if_already_set=False,
    )
