"""Runs a stack of parts for somebody outside: one at a time for a directory, JSON lines on stdout."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from turnsaga.errors import TurnSagaError
from workers._guardian import guard
from workers._parts import Limits, Part, PartFailed, Supervisor

__all__ = ["Addresses", "Pids", "Port", "Restarted", "Stack", "StackReady", "StartRefused", "run_stack"]

# A little more than a guardian takes that still ends what a killed supervisor left.
_LOCK_PATIENCE_S: Final = 1.5


class StartRefused(TurnSagaError):
    """The stack can't be started as it is asked for; nothing was started."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the loopback interface and the part that wants it."""

    part: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the parts are reached; ``ui`` is unknown for a Temporal that isn't ours."""

    web: str
    temporal: str
    ui: str | None
    sandbox: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What to run, in the order in which it is started, and what another command needs to work on it."""

    parts: tuple[Part, ...]
    ports: tuple[Port, ...]
    addresses: Addresses
    env: dict[str, str]
    data: Path
    cwd: Path
    limits: Limits = field(default_factory=Limits)


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pids(_Line):
    """The processes; ``temporal`` is None for an outside one."""

    temporal: int | None
    worker: tuple[int, ...]
    web: int
    sandbox: int


class StackReady(_Line):
    """The first line on stdout, once all parts are up."""

    ready: Literal[True] = True
    web: str
    temporal: str
    ui: str | None
    sandbox: str
    env: dict[str, str]
    pids: Pids


class Restarted(_Line):
    """A line on stdout for every process that took the place of a dead one."""

    restarted: str
    was: int
    pid: int


async def run_stack(stack: Stack, *, human: bool) -> int:
    """Run ``stack`` until SIGTERM, SIGINT or SIGHUP; a second SIGINT ends it by force. Returns the exit code.

    0: ended as asked. 1: a part didn't come up. 2: refused, since a port or the directory is in use.
    """
    try:
        async with _locked(stack.data) as lock:
            _check_ports(stack.ports)
            with guard(lock) as guardian:
                supervisor = Supervisor(
                    stack.parts,
                    cwd=stack.cwd,
                    logs=stack.data / "logs",
                    guardian=guardian,
                    watcher=_Telling(human=human),
                    limits=stack.limits,
                )
                with _signals(supervisor) as stop:
                    await supervisor.run(stop, lambda: _tell_ready(stack, supervisor, human=human))
    except StartRefused as error:
        _tell(f"workers dev: {error}")
        return 2
    except PartFailed as error:
        _tell(f"workers dev: {error}")
        return 1
    return 0


@contextlib.asynccontextmanager
async def _locked(data: Path) -> AsyncIterator[int]:
    """Hold the directory for this process and those that inherit the descriptor.

    Raises:
        StartRefused: another supervisor has it, or it can't be written.
    """
    lock = _open_lock(data)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while not _take(lock):
            if time.monotonic() > deadline:
                holder = os.pread(lock, 32, 0).decode() or "unknown"
                raise StartRefused(
                    f"{str(data)!r} is in use by another supervisor, pid {holder}; "
                    "end that one or choose another directory with --data"
                )
            await asyncio.sleep(0.05)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _open_lock(data: Path) -> int:
    try:
        data.mkdir(parents=True, exist_ok=True)
        return os.open(data / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartRefused(f"{str(data)!r} can't be used for data: {error.strerror}") from error


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_ports(ports: tuple[Port, ...]) -> None:
    for port in ports:
        with socket.socket() as listening:
            # As the parts bind it: what a part before left in TIME_WAIT is no obstacle.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind(("127.0.0.1", port.number))
            except OSError as error:
                raise StartRefused(
                    f"port {port.number} for {port.part} can't be had: {error.strerror}; "
                    "end what listens there or choose other ports with --port-base"
                ) from error


@contextlib.contextmanager
def _signals(supervisor: Supervisor) -> Iterator[asyncio.Event]:
    """Give the event that the first signal sets."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def interrupt() -> None:
        if stop.is_set():
            supervisor.kill()
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGHUP, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


class _Telling:
    """Says what happens to the parts."""

    def __init__(self, *, human: bool) -> None:
        self._human = human

    def restarted(self, part: str, was: int, pid: int) -> None:
        _print(Restarted(restarted=part, was=was, pid=pid))
        if self._human:
            _tell(f"{part} (pid {was}) ended and was started again (pid {pid})")

    def flapping(self, part: str, deaths: int, log: Path) -> None:
        _tell(
            f"workers dev: {part} ended {deaths} times in a row and is still started again; see {str(log)!r}"
        )


def _tell_ready(stack: Stack, supervisor: Supervisor, *, human: bool) -> None:
    temporal = supervisor.pids("temporal")
    at = stack.addresses
    _print(
        StackReady(
            web=at.web,
            temporal=at.temporal,
            ui=at.ui,
            sandbox=at.sandbox,
            env=stack.env,
            pids=Pids(
                temporal=temporal[0] if temporal else None,
                worker=supervisor.pids("worker"),
                web=supervisor.pids("web")[0],
                sandbox=supervisor.pids("sandbox")[0],
            ),
        )
    )
    if human:
        _tell(
            "\nAll is up; Ctrl-C ends it.\n\n"
            f"  API           {at.web}\n"
            f"  Temporal      {at.temporal}\n"
            f"  Temporal UI   {at.ui or 'as your Temporal has it'}\n"
            f"  sandbox       {at.sandbox}\n"
            f"  data          {stack.data}\n"
            f"  logs          {stack.data / 'logs'}\n"
        )


def _print(line: _Line) -> None:
    _write(sys.stdout.fileno(), line.model_dump_json())


def _tell(text: str) -> None:
    """Tell a person, beside the lines on stdout that a program reads."""
    _write(sys.stderr.fileno(), text)


def _write(descriptor: int, text: str) -> None:
    # A reader that took the first line and left must not bring the stack down.
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, f"{text}\n".encode())
