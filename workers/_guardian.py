"""Kills the parts of a development stack if their supervisor dies without ending them.

It needs no help from the kernel's ``PR_SET_PDEATHSIG``, which only Linux has, doesn't reach the parts' own
children, and needs code to run between fork and exec of a process that has threads. A pipe does instead:
its other end closes when the supervisor is gone, however it went.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

__all__ = ["Guardian", "guard"]

_GONE_WITHIN_S: Final = 1.0


class Guardian:
    """The supervisor's side: tells the guardian which process groups must not outlive it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        if self._process.stdin is not None:
            # A guardian that somebody killed is no reason to end a stack that works.
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line.encode())


@contextlib.contextmanager
def guard(lock: int) -> Iterator[Guardian]:
    """Run a guardian for the length of the block.

    It inherits the descriptor ``lock``, so that what the lock protects stays taken until all groups are dead.
    """
    # -I and -S: it needs nothing but the standard library, and so it is up in milliseconds.
    process = subprocess.Popen(  # noqa: S603  # our own interpreter and file
        (sys.executable, "-I", "-S", __file__),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        bufsize=0,
        pass_fds=(lock,),
        start_new_session=True,
    )
    try:
        yield Guardian(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.wait()


def main() -> None:
    """Read groups from stdin, and kill those that are left when it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (groups := {group for group in groups if _kill(group)}) and time.monotonic() < deadline:
        time.sleep(0.01)


def _kill(group: int) -> bool:
    """Whether there was still something to kill."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
