"""Errors of the sandbox itself; what a vendor refuses is an answer, not one of these."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.calls import Answer


class SandboxError(Exception):
    """Base of everything that the sandbox raises."""


class CannotStart(SandboxError):
    """A setting can't be used: a port that is taken, a database that can't be opened."""

    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(f"{setting}={str(value)!r} can't be used: {reason}")
        self.setting = setting
        self.value = value
        self.reason = reason


class ClosingDown(SandboxError):
    """The process ends while a call is still under way; its connection is cut."""


class BodyTooLarge(SandboxError):
    """A request is bigger than the sandbox reads."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body is bigger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class ClientGone(SandboxError):
    """The client closed its connection before its request was whole."""


class Refused(SandboxError):
    """A vendor refuses a call; raised before the call has changed anything."""

    def __init__(self, answer: "Answer") -> None:
        super().__init__(f"refused with status {answer.status}")
        self.answer = answer
