"""What Temporal's core, which is not Python, has to say: through the same handler as all else."""

import logging
import os
import sys
from collections.abc import Callable
from typing import Final, Literal, NoReturn

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

__all__ = ["forward_engine_logs", "leave_after"]

_LOGGER: Final = "temporalio.core"


def forward_engine_logs(env: Literal["development", "production"]) -> None:
    """Have Temporal's core log as this process does. Meant for its start, before a client connects.

    By itself it writes lines of its own shape. Its fields are left out in production: those of a failed
    workflow task hold the whole failure. Such a process ends by ``leave_after``.
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


def leave_after(main: Callable[[], object]) -> NoReturn:
    """Run a process to its end, and leave with its code: what it returns, or what it exits with.

    The interpreter is not taken down first. The core logs from threads of its own, and one that does so
    meanwhile ends the process with "Fatal Python error: PyGILState_Release" and a signal's code.
    """
    try:
        ended = main()
    except SystemExit as exited:
        ended = exited.code
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is told as ever
        sys.excepthook(type(error), error, error.__traceback__)
        ended = 1
    if isinstance(ended, str):
        sys.stderr.write(f"{ended}\n")
        ended = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended if isinstance(ended, int) else 0)
