"""Logs: one line an event on stderr, JSON in production and readable in development."""

import logging
import sys
from collections.abc import Sequence
from typing import Final, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger
from temporalio import workflow

__all__ = ["configure", "drop_in_replay"]

# They say at INFO what every request of ours is already said to do.
_QUIET: Final = ("alembic", "httpcore", "httpx")


def configure(env: Literal["development", "production"]) -> None:
    """Send what structlog and the standard library log to stderr. Meant for a process's start.

    A second call replaces the first one.
    """
    shared: Sequence[Processor] = (
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            drop_in_replay,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # Loggers are module constants. A cached one would keep the configuration of its first line.
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(env)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def drop_in_replay(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Pass an event on unless a workflow says it again while its history is replayed.

    Raises:
        structlog.DropEvent: it was logged when it happened.
    """
    if workflow.in_workflow() and workflow.unsafe.is_replaying():
        raise structlog.DropEvent
    return event


def _rendering(env: Literal["development", "production"]) -> tuple[Processor, ...]:
    if env == "production":
        return (structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str))
    return (
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # The default shows local variables, and those hold credentials and what users wrote.
            exception_formatter=structlog.dev.plain_traceback,
        ),
    )
