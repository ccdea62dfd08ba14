"""``Deployment``: what the command ``turnsaga`` has to know of the deployment that it is run for."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from turnsaga import names
from turnsaga.tools import Tools

__all__ = ["Check", "Deployment", "Finding", "Status"]


class Status(StrEnum):
    """How a check came out. Only ``FAIL`` makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """What a check found: what is so, and what to do about it unless all is well.

    Both are shown and may be logged by whoever runs the command: no credentials, and no foreign error's
    text, which can hold some.
    """

    status: Status
    what: str
    remedy: str = ""

    @classmethod
    def ok(cls, what: str) -> "Finding":
        """Return that all is well."""
        return cls(Status.OK, what)

    @classmethod
    def warn(cls, what: str, remedy: str) -> "Finding":
        """Return that it works, and that somebody should look at it."""
        return cls(Status.WARN, what, remedy)

    @classmethod
    def fail(cls, what: str, remedy: str) -> "Finding":
        """Return that it doesn't work."""
        return cls(Status.FAIL, what, remedy)


@dataclass(frozen=True)
class Check:
    """One question that ``turnsaga doctor`` asks; ``name`` is dotted, the part that it is about first.

    ``run`` changes nothing anywhere. It may be cancelled once its time is over, and runs beside others.
    """

    name: str
    run: Callable[[], Awaitable[Finding]]


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A deployment as its operators' command sees it; how Temporal is reached follows Temporal's settings.

    ``open_tools`` gives the tools that workers have, and closes their connections at the end. ``database``
    is the ledger's URL. ``checks`` are what only the deployment can ask: of its settings, of its vendors.
    """

    open_tools: Callable[[], AbstractAsyncContextManager[Tools]]
    database: str = field(repr=False)
    task_queue: str = names.TASK_QUEUE
    env: Literal["development", "production"] = "production"
    checks: Sequence[Check] = ()
