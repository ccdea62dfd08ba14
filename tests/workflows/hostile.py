"""What a tool's own code or its vendor may hand over at the worst: values, and errors."""

import socket
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from turnsaga.errors import NotApplied, OutcomeUnknown, StillRunning

__all__ = ["ERRORS", "LARGE", "REASONS", "VALUES"]

LARGE: Final = "x" * 3_000_000


class _Unreadable(Mapping[str, Any]):
    """Raises at everything that is asked of it."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


def _endless() -> dict[str, Any]:
    value: dict[str, Any] = {"list": []}
    value["self"] = value
    value["list"].append(value["list"])
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    return value


VALUES: Final[Mapping[str, Callable[[], object]]] = {
    "3 MB": lambda: LARGE,
    "3 MB of members": lambda: {f"member {number}": "y" * 1000 for number in range(3000)},
    "NUL": lambda: "a\x00b",
    "half a surrogate pair": lambda: "a\ud83d",
    "an emoji": lambda: "\U0001f600",
    "NaN": lambda: {"a": float("nan"), "b": float("inf"), "c": -float("inf")},
    "a set": lambda: {"a"},
    "bytes": lambda: b"\xff\x00",
    "a Decimal": lambda: Decimal("1.10"),
    "a datetime": lambda: datetime(2026, 1, 1, tzinfo=UTC),
    "an object": object,
    "a class": lambda: dict,
    "a socket": lambda: socket.socket,
    "one that contains itself": _endless,
    "5000 lists": _deep,
    "odd keys": lambda: {1: "a", "1": "b", (1, 2): "c", None: "d", b"\xff": "e", float("nan"): "f"},
    "10000 digits": lambda: 10**10_000,
    "one that can't be read": _Unreadable,
}


class _Speechless(Exception):
    """Can't be pickled, compared or shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


class _Quit(BaseException):
    """What no ``except Exception`` sees."""


def _with_a_socket() -> BaseException:
    # Closed, so that nothing of it is left open; it is as little to be pickled.
    with socket.socket() as end:
        return ConnectionError("reset", end)


ERRORS: Final[Mapping[str, Callable[[], BaseException]]] = {
    "a socket in its args": _with_a_socket,
    "no text": _Speechless,
    "3 MB of text": lambda: RuntimeError(LARGE),
    "half a surrogate pair": lambda: ValueError("a\x00b\ud83d"),
    "a BaseException": _Quit,
    "an exit": lambda: SystemExit(3),
    "a group": lambda: BaseExceptionGroup("many", [_Quit(), _Speechless()]),
    "an error for a reason": lambda: KeyError(_Speechless()),
}


class _WithoutAReason(NotApplied):
    def __init__(self) -> None:
        """Set nothing, as a subclass that forgets its base."""


class _WithoutAnEnd(OutcomeUnknown):
    def __init__(self) -> None:
        """As above."""


def _odd(reason: object) -> Any:
    """Return what a type checker would refuse."""
    return reason


REASONS: Final[Mapping[str, Callable[[], BaseException]]] = {
    "not applied for 3 MB": lambda: NotApplied(LARGE),
    "not applied for an error": lambda: NotApplied(_odd(_Speechless())),
    "not applied without a reason": _WithoutAReason,
    "unknown for half a surrogate pair": lambda: OutcomeUnknown("a\x00b\ud83d"),
    "unknown for an error": lambda: OutcomeUnknown(_odd(_Speechless())),
    "unknown without a reason": _WithoutAnEnd,
    "running for an object": lambda: StillRunning(_odd(object())),
}
"""What a tool says in the engine's own words, and says oddly."""
