"""Logs as they are written, for tests that look at them."""

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from turnsaga.logs import configure


@dataclass(frozen=True)
class Captured:
    """What was written since logging was configured."""

    stream: io.StringIO

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Each line's object; one that isn't JSON fails the test."""
        return [json.loads(line) for line in self.text.splitlines()]


@contextmanager
def captured(env: Literal["development", "production"]) -> Iterator[Captured]:
    """Configure logging as a process of ``env`` does, and put everything back at the end."""
    root = logging.getLogger()
    handlers, level, err = root.handlers[:], root.level, sys.stderr
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    stream = io.StringIO()
    sys.stderr = stream
    try:
        configure(env)
        sys.stderr = err
        yield Captured(stream)
    finally:
        sys.stderr = err
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
