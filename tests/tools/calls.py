"""What tests call a tool's functions with, and a system that takes no connection."""

import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from turnsaga.tools import Call

_numbers = itertools.count(1)


def call_within(seconds: float = 10) -> Call:
    key = f"k{next(_numbers)}"
    return Call(
        tenant="acme", user="ada", turn="t", effect="e", key=key, effect_key=key,
        remaining=timedelta(seconds=seconds),
    )  # fmt: skip


@contextmanager
def deaf() -> Iterator[int]:
    """A port whose queue of connections is full, so that a further one waits for its first answer."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.2)
            try:
                waiting.connect(listening.getsockname())
            except TimeoutError:
                break
        yield int(listening.getsockname()[1])
