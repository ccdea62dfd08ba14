"""``python -m workers run``: one worker, until it is told to stop."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.deployment import deployment_tools
from activities.settings import VendorSettings
from settings.shared import ledger
from turnsaga.logs import configure, forward_engine_logs
from turnsaga.store import SqlStore
from turnsaga.tools import Tools
from workers.build import build_worker, connect, prepare_engine
from workers.settings import WorkerSettings

__all__ = ["run"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def run(settings: WorkerSettings, vendors: VendorSettings) -> int:
    """Work until SIGTERM or SIGINT, then let the calls in flight end. Returns the exit code.

    A shutdown is never an abort: what isn't finished is taken up by another worker.
    """
    configure(settings.env)
    forward_engine_logs(settings.env)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    store = ledger(settings)
    stopping = asyncio.create_task(stop.wait())
    async with deployment_tools(vendors) as tools:
        client = await _unless(stopping, _ready(store, settings, tools))
        if client is not None:
            await _work(build_worker(client, store, settings, tools=tools), settings, stop)
    stopping.cancel()
    await store.close()
    return 0


async def _ready(store: SqlStore, settings: WorkerSettings, tools: Tools) -> Client:
    await store.open(patience_s=60)
    await store.write_tool_cards(tools.cards())
    client = await connect()
    await prepare_engine(client, settings)
    return client


async def _unless(stopping: asyncio.Task[bool], starting: Coroutine[Any, Any, Client]) -> Client | None:
    """Return the client, or None if the worker is told to stop while it still waits for the others."""
    start = asyncio.create_task(starting)
    await asyncio.wait({start, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if start.done():
        return start.result()
    start.cancel()
    return None


async def _work(worker: Worker, settings: WorkerSettings, stop: asyncio.Event) -> None:
    async with worker:
        _log.info("worker.started", task_queue=settings.task_queue)
        if settings.ready_file is not None:
            settings.ready_file.write_text("ready\n", encoding="utf-8")
        await stop.wait()
        _log.info("worker.stopping", drain_s=settings.drain_s)
