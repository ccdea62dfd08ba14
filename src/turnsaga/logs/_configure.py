"""One handler for all lines of a process, whoever writes them."""

import logging
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger
from temporalio import workflow

from turnsaga.logs._discretion import without_texts

__all__ = ["configure", "drop_in_replay"]

_CRASH: Final = "process.died"
# Temporal's core hangs its own record onto ours, and its fields with it.
_UNSHOWN: Final = "temporal_log"


def configure(env: Literal["development", "production"]) -> None:
    """Send what structlog and the standard library log to stderr. Meant for a process's start.

    Warnings and errors that nobody catches become lines too. A second call replaces the first one.
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
    handler.addFilter(_is_heard)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_rendering(env))
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    _gather_only_what_is_shown()
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    sys.unraisablehook = _log_unraisable


def _gather_only_what_is_shown() -> None:
    """Spare each line the walk through the stack and the names of its thread and process.

    Source: https://docs.python.org/3/howto/logging.html#optimization.
    """
    logging._srcfile = None  # noqa: SLF001  # the documented way
    logging.logThreads = False
    logging.logProcesses = False
    logging.logMultiprocessing = False


def drop_in_replay(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Pass an event on unless a workflow says it again while its history is replayed.

    Raises:
        structlog.DropEvent: it was logged when it happened.
    """
    if workflow.in_workflow() and workflow.unsafe.is_replaying():
        raise structlog.DropEvent
    return event


def _is_heard(record: logging.LogRecord) -> bool:
    """Tell whether a line is ours or grave: other libraries say at INFO what they send and receive."""
    ours = hasattr(record, "_logger")
    return ours or record.levelno >= logging.WARNING


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger(__name__).critical(_CRASH, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(died: threading.ExceptHookArgs) -> None:
    if died.exc_value is not None and not isinstance(died.exc_value, SystemExit):
        logging.getLogger(__name__).critical("thread.died", exc_info=died.exc_value)


def _log_unraisable(lost: "sys.UnraisableHookArgs") -> None:
    # The object isn't named: its repr can hold anything.
    logging.getLogger(__name__).error("error.unraisable", exc_info=lost.exc_value)


def _without_engine_s_record(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event.pop(_UNSHOWN, None)
    return event


def _rendering(env: Literal["development", "production"]) -> tuple[Processor, ...]:
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if env == "production":
        return (
            _without_engine_s_record,
            without_texts,
            remove,
            # What is left of errors by now is at DEBUG, where texts are meant.
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        )
    return (
        _without_engine_s_record,
        remove,
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # The default shows local variables, and those hold credentials and what users wrote.
            exception_formatter=structlog.dev.plain_traceback,
        ),
    )
