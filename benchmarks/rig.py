"""What a run stands on: one Temporal server, databases, a worker a side, and their processor time."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]  # ships no types
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from benchmarks.shop import MARKS
from tests.databases import running_postgres
from tests.stack import SEARCH_ATTRIBUTES, TEMPORAL, free_port

__all__ = ["SIDES", "Marks", "Rig", "rig", "temporal_server"]

SIDES: Final = ("bare", "sqlite", "postgres")
REPOSITORY: Final = Path(__file__).parents[1]


class Marks(asyncio.DatagramProtocol):
    """Hears what the bodies tell, and when it was."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[str, float]]] = {}
        self._waiting: dict[tuple[str, str], asyncio.Event] = {}

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002  # asyncio's signature
        """Take one mark."""
        told = json.loads(data)
        self.told.setdefault(told["turn"], []).append((told["what"], told["at"]))
        self._event(told["turn"], told["what"]).set()

    async def wait(self, turn: str, what: str) -> None:
        """Return once the turn has come to that point."""
        async with asyncio.timeout(120):
            await self._event(turn, what).wait()

    def last(self, turn: str, what: str) -> float:
        """Return when the turn last came to that point."""
        return max(at for told, at in self.told[turn] if told == what)

    def count(self, turn: str, what: str) -> int:
        """Return how often the turn came to that point."""
        return sum(told == what for told, _ in self.told.get(turn, ()))

    def _event(self, turn: str, what: str) -> asyncio.Event:
        return self._waiting.setdefault((turn, what), asyncio.Event())


@dataclass
class Rig:
    """What runs, and how to reach it."""

    client: Client
    marks: Marks
    databases: Mapping[str, str]
    folder: Path
    processes: dict[str, psutil.Process] = field(default_factory=dict[str, psutil.Process])

    async def ledger_ms(self, side: str) -> list[float]:
        """Return how long each ledger transaction of the worker took since the last time this was asked."""
        told = self.folder / f"{side}.spans"
        self.processes[f"worker-{side}"].send_signal(signal.SIGUSR1)
        give_up = time.monotonic() + 10
        while not os.path.exists(told):  # noqa: ASYNC240, PTH110  # a glance at a local file
            if time.monotonic() > give_up:
                raise RuntimeError(f"the worker of {side!r} didn't tell its transactions")
            await asyncio.sleep(0.02)
        spans: list[float] = json.loads(await asyncio.to_thread(told.read_text))
        await asyncio.to_thread(told.unlink)
        return spans

    def cpu_ms(self, side: str) -> dict[str, float]:
        """Return the processor time so far of what works for a side, in ms, by part."""
        parts = {"server": "temporal", "worker": f"worker-{side}", "client": "driver"}
        if side == "postgres":
            parts["postgres"] = "postgres"
        return {part: _spent_ms(self.processes[name]) for part, name in parts.items()}


def _spent_ms(process: psutil.Process) -> float:
    spent = process.cpu_times()
    total = spent.user + spent.system
    if process.name().startswith("postgres"):
        # A server process a connection; those that have ended are in the parent's account.
        total += spent.children_user + spent.children_system
        for child in process.children(recursive=True):
            with_child = child.cpu_times()
            total += with_child.user + with_child.system
    return float(total * 1000)


@asynccontextmanager
async def rig(folder: Path, *, sides: tuple[str, ...] = SIDES) -> AsyncIterator[Rig]:
    """Start everything; end it again."""
    async with AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()
        marks_port, temporal_port = free_port(), free_port()
        hearing = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        hearing.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        hearing.bind(("127.0.0.1", marks_port))
        transport, marks = await loop.create_datagram_endpoint(Marks, sock=hearing)
        stack.callback(transport.close)
        databases = {"sqlite": f"sqlite:///{folder / 'ledger.db'}"}
        processes = {"driver": psutil.Process()}
        if "postgres" in sides:
            server = stack.enter_context(running_postgres(folder))
            databases["postgres"] = server.new_database()
            first = (folder / "data" / "postmaster.pid").read_text().split()[0]
            processes["postgres"] = psutil.Process(int(first))
        temporal = await stack.enter_async_context(
            _process("temporal", _server_words(temporal_port, folder), {}, folder)
        )
        processes["temporal"] = temporal
        address = f"127.0.0.1:{temporal_port}"
        client = await _connected(address)
        for side in sides:
            env = {
                "TEMPORAL_ADDRESS": address,
                MARKS: str(marks_port),
                "TURNSAGA_BENCH_SIDE": side,
                "TURNSAGA_BENCH_QUEUE": f"bench-{side}",
                "TURNSAGA_BENCH_DATABASE": databases.get(side, ""),
                "TURNSAGA_BENCH_READY": str(folder / f"{side}.ready"),
            }
            words = (sys.executable, "-m", "benchmarks.worker")
            processes[f"worker-{side}"] = await stack.enter_async_context(
                _process(f"worker-{side}", words, env, folder)
            )
            await _begun(processes[f"worker-{side}"], folder / f"{side}.ready", folder / f"worker-{side}.log")
        yield Rig(client, marks, databases, folder, processes)


@asynccontextmanager
async def temporal_server(folder: Path) -> AsyncIterator[Client]:
    """Run a Temporal server by itself, and give a client of it."""
    port = free_port()
    async with _process("temporal", _server_words(port, folder), {}, folder):
        yield await _connected(f"127.0.0.1:{port}")


def _server_words(port: int, folder: Path) -> tuple[str, ...]:
    flags: dict[str, tuple[str, ...]] = {
        "--search-attribute": SEARCH_ATTRIBUTES,
        "--dynamic-config-value": (
            "history.transferProcessorMaxPollRPS=2000",
            "history.timerProcessorMaxPollRPS=2000",
        ),
        "--sqlite-pragma": ("journal_mode=WAL", "synchronous=NORMAL"),
        "--db-filename": (str(folder / "temporal.db"),),
        "--port": (str(port),),
        "--log-level": ("error",),
    }
    words = (word for flag, values in flags.items() for value in values for word in (flag, value))
    return (str(TEMPORAL), "server", "start-dev", "--headless", *words)


@asynccontextmanager
async def _process(
    name: str, words: tuple[str, ...], env: Mapping[str, str], folder: Path
) -> AsyncIterator[psutil.Process]:
    with (folder / f"{name}.log").open("ab") as log:
        running = await asyncio.create_subprocess_exec(
            *words,
            cwd=REPOSITORY,
            env={**os.environ, **env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield psutil.Process(running.pid)
    finally:
        if running.returncode is None:
            running.send_signal(signal.SIGTERM)
        await running.wait()


async def _connected(address: str) -> Client:
    while True:
        try:
            return await Client.connect(address, data_converter=pydantic_data_converter)
        except RuntimeError:
            await asyncio.sleep(0.1)


async def _begun(process: psutil.Process, ready: Path, log: Path) -> None:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + 60
    while not os.path.exists(ready):  # noqa: ASYNC240, PTH110  # a glance at a local file
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE or loop.time() > give_up:
            raise RuntimeError(f"a worker didn't start:\n{await asyncio.to_thread(log.read_text)}")
        await asyncio.sleep(0.05)
