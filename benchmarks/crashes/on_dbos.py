"""The same saga on DBOS: what was done is undone in ``except``, by steps of its own.

So does its documentation's checkout (https://docs.dbos.dev/python/examples/widget-store), and like that it
is told of its end by a message. DBOS isn't needed for anything else here, so it is asked for by name.
"""

import importlib
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from benchmarks.crashes import shop
from benchmarks.crashes.cells import Order
from benchmarks.crashes.shop import Call

__all__ = ["QUEUE", "STOP", "WAITING", "WORKFLOW", "dbos_package", "dbos_version", "launch"]

QUEUE: Final = "orders"
STOP: Final = "stop"
WAITING: Final = "waiting"
WORKFLOW: Final = "crashes_order"
_PATIENCE_S: Final = 300
_RETRIED: Final = {"retries_allowed": True, "max_attempts": 10}


class _StoppedError(Exception):
    """It was told to stop."""


def dbos_version() -> str | None:
    """Return its version, or None where it isn't installed."""
    try:
        return version("dbos")
    except PackageNotFoundError:
        return None


def dbos_package() -> Any:  # noqa: ANN401  # checked without it being installed
    """Return the package."""
    return importlib.import_module("dbos")


def launch(database: str) -> Any:  # noqa: ANN401  # as above
    """Work on this database, beginning with what a killed process has left; return what ends it."""
    dbos = dbos_package().DBOS
    dbos(config={"name": "crashes", "system_database_url": database, "run_admin_server": False})
    dbos.workflow(name=WORKFLOW)(crashes_order)
    dbos.launch()
    dbos.register_queue(QUEUE)
    return dbos


async def crashes_order(name: str, waits: bool, keyed: bool) -> None:  # noqa: FBT001  # by DBOS
    """Run one order to the end, or undo what was done."""
    dbos = dbos_package().DBOS
    order = Order(name, waits)
    steps = 0

    async def step(what: Callable[[Call], Awaitable[Any]], about: str) -> Any:  # noqa: ANN401  # the step's
        nonlocal steps
        steps += 1
        key = f"{dbos.workflow_id}-{steps}" if keyed else None
        return await dbos.run_step_async({"name": what.__name__, **_RETRIED}, what, Call(about, key))

    undos: list[tuple[Callable[[Call], Awaitable[None]], str]] = []
    try:
        undos.append((shop.delete_record, order.record))
        await step(shop.create_record, order.record)
        for invoice in order.invoices:
            charged = await step(shop.charge, invoice)
            undos.append((shop.refund, charged))
        if order.waits:
            await _wait_for_a_stop(dbos)
    except Exception:
        for undo, about in reversed(undos):
            await step(undo, about)
        raise


async def _wait_for_a_stop(dbos: Any) -> None:  # noqa: ANN401  # as above
    await dbos.set_event_async(WAITING, True)
    if await dbos.recv_async(STOP, timeout_seconds=_PATIENCE_S) is not None:
        raise _StoppedError
