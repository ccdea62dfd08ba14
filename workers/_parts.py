"""Keeps processes running: each in a session of its own, started again when it dies, ended in order."""

import asyncio
import contextlib
import http.client
import itertools
import os
import shlex
import signal
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from turnsaga.errors import TurnSagaError
from workers._guardian import Guardian

__all__ = ["FileProbe", "HttpProbe", "Limits", "Part", "PartFailed", "Probe", "Supervisor", "TcpProbe"]

_POLL_S: Final = 0.05
_ANSWER_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 0.5
_LOG_BYTES: Final = 10 * 1024 * 1024
_TAIL_LINES: Final = 20


class PartFailed(TurnSagaError):
    """A part didn't come up when the stack was started."""

    def __init__(self, part: str, why: str, log: Path) -> None:
        tail = "".join(f"\n    {line}" for line in _tail(log))
        super().__init__(f"{part} {why}; the end of {str(log)!r}:{tail}")
        self.part = part
        self.log = log


class Probe(Protocol):
    """Tells whether the process that was started last is up."""

    def reset(self) -> None:
        """Forget the process before; called ahead of every start."""

    async def is_up(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class FileProbe:
    """Up once the process has written a file."""

    path: Path

    def reset(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)

    async def is_up(self) -> bool:
        return self.path.exists()


@dataclass(frozen=True, slots=True)
class TcpProbe:
    """Up once all of the ports take connections."""

    host: str
    ports: tuple[int, ...]

    def reset(self) -> None:
        pass

    async def is_up(self) -> bool:
        try:
            for port in self.ports:
                _, writer = await asyncio.open_connection(self.host, port)
                writer.close()
                await writer.wait_closed()
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Up once ``path`` answers 200."""

    host: str
    port: int
    path: str = "/healthz"

    def reset(self) -> None:
        pass

    async def is_up(self) -> bool:
        return await asyncio.to_thread(self._answers)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", self.path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process to be kept running. Several may have one name; ``log`` tells them apart."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    probe: Probe
    log: str
    grace: timedelta = timedelta(seconds=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a start counts as failed.

    A life shorter than ``quick`` is a quick death; so many in a row as ``deaths`` end the first start.
    """

    quick: timedelta = timedelta(seconds=5)
    deaths: int = 5
    start: timedelta = timedelta(seconds=60)


class Watcher(Protocol):
    """Is told what happens to the parts once all of them have been up."""

    def restarted(self, part: str, was: int, pid: int) -> None: ...

    def flapping(self, part: str, deaths: int, log: Path) -> None: ...


class Supervisor:
    """Runs parts in the order given and ends them in the opposite one, those of one name together."""

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        cwd: Path,
        logs: Path,
        guardian: Guardian,
        watcher: Watcher,
        limits: Limits,
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._slots = tuple(
            _Slot(
                part,
                log=logs / f"{part.log}.log",
                cwd=cwd,
                guardian=guardian,
                watcher=watcher,
                limits=limits,
            )
            for part in parts
        )
        self._limits = limits

    def pids(self, name: str) -> tuple[int, ...]:
        """Return the processes of that name which run now."""
        return tuple(slot.pid for slot in self._slots if slot.part.name == name and slot.pid is not None)

    async def run(self, stop: asyncio.Event, on_up: Callable[[], None]) -> None:
        """Start all, call ``on_up`` once all are up, keep them running until ``stop``, and end them.

        Nothing is left running, also when it raises.

        Raises:
            PartFailed: a part didn't come up, or not in time.
        """
        try:
            for slot in self._slots:
                slot.start()
            await self._first_of(stop.wait(), self._all_up())
            if not stop.is_set():
                for slot in self._slots:
                    slot.settled = True
                on_up()
                await self._first_of(stop.wait())
        finally:
            await self._end()

    def kill(self) -> None:
        """Kill what runs; nothing is started again."""
        for slot in self._slots:
            slot.close()
            slot.kill()

    async def _first_of(self, *waits: Coroutine[Any, Any, object]) -> None:
        helpers = [asyncio.create_task(wait) for wait in waits]
        try:
            running = [slot.task for slot in self._slots if slot.task is not None]
            done, _ = await asyncio.wait([*helpers, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        for task in done:
            task.result()

    async def _all_up(self) -> None:
        limit = self._limits.start
        try:
            async with asyncio.timeout(limit.total_seconds()):
                # A part that was up can die while another is waited for.
                while waiting := [slot for slot in self._slots if not slot.up.is_set()]:
                    await waiting[0].up.wait()
        except TimeoutError:
            late = next(slot for slot in self._slots if not slot.up.is_set())
            raise PartFailed(
                late.part.name, f"wasn't up after {limit.total_seconds():.0f} s", late.log
            ) from None

    async def _end(self) -> None:
        for slot in self._slots:
            slot.close()
        for _, together in itertools.groupby(reversed(self._slots), key=lambda slot: slot.part.name):
            await asyncio.gather(*(slot.end() for slot in together))


class _Slot:
    """The place of one part, whichever process fills it now."""

    def __init__(
        self, part: Part, *, log: Path, cwd: Path, guardian: Guardian, watcher: Watcher, limits: Limits
    ) -> None:
        self.part = part
        self.log = log
        self.pid: int | None = None
        self.up = asyncio.Event()
        self.settled = False
        self.task: asyncio.Task[None] | None = None
        self._cwd = cwd
        self._guardian = guardian
        self._watcher = watcher
        self._limits = limits
        self._closed = asyncio.Event()

    def start(self) -> None:
        self.task = asyncio.create_task(self._keep_running(), name=f"keep {self.part.log} running")

    def close(self) -> None:
        """Let the process that runs be the last."""
        self._closed.set()

    def kill(self) -> None:
        if self.pid is not None:
            _kill_group(self.pid)

    async def end(self) -> None:
        """End the process, by force if it takes longer than its grace."""
        if self.task is None:
            return
        if self.pid is not None:
            _terminate(self.pid)
        ended, _ = await asyncio.wait({self.task}, timeout=self.part.grace.total_seconds())
        if not ended:
            self.kill()
            await asyncio.wait({self.task})

    async def _keep_running(self) -> None:
        was: int | None = None
        deaths = 0
        while not self._closed.is_set():
            process = await self._spawn()
            if self._closed.is_set():
                _terminate(process.pid)
            elif was is not None and self.settled:
                self._watcher.restarted(self.part.name, was, process.pid)
            started = time.monotonic()
            code = await self._live(process)
            if self._closed.is_set():
                return
            was = process.pid
            lived = timedelta(seconds=time.monotonic() - started)
            deaths = deaths + 1 if lived < self._limits.quick else 0
            if deaths and deaths % self._limits.deaths == 0:
                if not self.settled:
                    why = f"ended {deaths} times in a row, last with {_describe(code)}"
                    raise PartFailed(self.part.name, why, self.log)
                self._watcher.flapping(self.part.name, deaths, self.log)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), _pause_s(deaths))

    async def _spawn(self) -> Process:
        self.part.probe.reset()
        with _open_log(self.log, self.part.argv) as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.part.argv,
                    env=dict(self.part.env),
                    cwd=self._cwd,
                    stdin=DEVNULL,
                    stdout=output,
                    stderr=STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise PartFailed(self.part.name, f"can't be started ({error.strerror})", self.log) from error
        self._guardian.watch(process.pid)
        self.pid = process.pid
        return process

    async def _live(self, process: Process) -> int:
        """Return the exit code, once the process and the children that it left are gone."""
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch())
                code = await process.wait()
                watching.cancel()
        finally:
            self.up.clear()
            self.pid = None
            _kill_group(process.pid)
            self._guardian.forget(process.pid)
        return code

    async def _watch(self) -> None:
        while not await self.part.probe.is_up():  # noqa: ASYNC110  # it comes up outside this process
            await asyncio.sleep(_POLL_S)
        self.up.set()


def _pause_s(deaths: int) -> float:
    """Return how long to wait before the next start; never so long that it takes a second."""
    return min(_LONGEST_PAUSE_S, 0.1 * 2 ** (deaths - 2)) if deaths > 1 else 0.0


def _describe(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _terminate(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _kill_group(group: int) -> None:
    # macOS answers EPERM where a group consists of zombies alone.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _open_log(log: Path, argv: Sequence[str]) -> BinaryIO:
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
    output = log.open("ab", buffering=0)
    output.write(f"--- {datetime.now(UTC).isoformat(timespec='milliseconds')} {shlex.join(argv)}\n".encode())
    return output


def _tail(log: Path) -> tuple[str, ...]:
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return tuple(line.rstrip() for line in deque(lines, maxlen=_TAIL_LINES))
    except OSError as error:
        return (f"(not readable: {error.strerror})",)
