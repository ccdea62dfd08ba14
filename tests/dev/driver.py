"""Drives a supervisor from outside: its lines, its signals, and what it leaves behind."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import psutil  # type: ignore[import-untyped]  # ships no types

from workers._stack import Restarted, StackReady

ROOT = Path(__file__).resolve().parents[2]


class Driver:
    """A supervisor that runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.seen: set[int] = set()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self, within_s: float = 30) -> str:
        """Return the next line on stdout; "" at its end."""
        assert self._process.stdout is not None
        async with asyncio.timeout(within_s):
            return (await self._process.stdout.readline()).decode()

    async def ready(self) -> StackReady:
        line = await self.line()
        assert line, await self._errors()
        return StackReady.model_validate_json(line)

    async def restarted(self, within_s: float = 5) -> Restarted:
        return Restarted.model_validate_json(await self.line(within_s))

    def close_stdout(self) -> None:
        """Leave as a reader does that has what it wants."""
        transport = cast("asyncio.SubprocessTransport", self._process._transport)  # type: ignore[attr-defined]
        pipe = transport.get_pipe_transport(1)
        assert pipe is not None
        pipe.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self, within_s: float = 30) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was said on stderr."""
        async with asyncio.timeout(within_s):
            errors = await self._errors()
            return await self._process.wait(), errors

    async def _errors(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode()

    def family(self) -> set[int]:
        """Return every process below the supervisor."""
        family = {child.pid for child in psutil.Process(self.pid).children(recursive=True)}
        self.seen |= family
        return family

    def guardian(self) -> int:
        """Return the process that kills the parts if the supervisor can't."""
        children = psutil.Process(self.pid).children()
        (guardian,) = (child.pid for child in children if "_guardian.py" in child.cmdline()[-1])
        return int(guardian)


@asynccontextmanager
async def running(*argv: str, env: dict[str, str] | None = None) -> AsyncIterator[Driver]:
    """Run ``python *argv`` for the length of the block; kill what a failed test leaves."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *argv,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    driver = Driver(process)
    try:
        yield driver
    finally:
        if process.returncode is None:
            driver.family()
            process.kill()
        for pid in driver.seen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()


def alive(pids: Iterable[int]) -> set[int]:
    """Return those that still run; a zombie that nobody reaps has ended."""
    return {pid for pid in pids if _runs(pid)}


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], object], within_s: float = 5) -> None:
    """Wait for ``condition``."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.02)


def free_ports(count: int) -> int:
    """Return the first of ``count`` ports in a row that nothing listens on."""
    # Below the range from which outgoing connections get their ports.
    for base in range(20000 + os.getpid() % 1000 * 10, 32000, count):
        if all(_is_free(base + offset) for offset in range(count)):
            return base
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
