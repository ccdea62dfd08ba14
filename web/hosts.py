"""``Hosts``: the names under which a request is taken, by its ``Host`` header."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["ANY_HOST", "LOOPBACK_HOSTS", "Hosts", "is_host_name"]

_NAME: Final = r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]"
_HOST: Final = re.compile(rf"({_NAME})(?::[0-9]{{1,5}})?")


class Hosts:
    """A set of host names, without ports and in whatever case; None is every one."""

    def __init__(self, names: Iterable[str] | None, why: str) -> None:
        self._names = None if names is None else frozenset(name.lower() for name in names)
        self.why = why

    def serves(self, given: Sequence[str]) -> bool:
        """Tell whether a request with these ``Host`` headers is taken."""
        if self._names is None:
            return True
        found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        return found is not None and found.group(1).lower() in self._names


def is_host_name(text: str) -> bool:
    """Tell whether the text is a host's name or address, an IPv6 one in brackets, and no port."""
    return re.fullmatch(_NAME, text) is not None


LOOPBACK_HOSTS: Final = Hosts(
    ("127.0.0.1", "localhost", "[::1]"),
    "the development identity is served as 127.0.0.1, localhost or [::1] only",
)
ANY_HOST: Final = Hosts(None, "every host name is served")
