"""The lending desk's worker: its own workflow, its own model and its own tool; the rest is the plugin's."""

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from activities import Clerk, Shelf
from turnsaga import SqlStore, Tools, TurnSagaPlugin
from turnsaga.connecting import temporal_config
from workflows import LendingTurn

__all__ = ["desk_worker"]


async def desk_worker(store: SqlStore, shelf: Shelf, *, task_queue: str) -> Worker:
    """Return a worker over a connection of its own."""
    tools = Tools([shelf.tool()])
    await store.write_tool_cards(tools.cards())
    config = temporal_config()
    config["data_converter"] = pydantic_data_converter
    return Worker(
        await Client.connect(**config),
        task_queue=task_queue,
        workflows=[LendingTurn],
        activities=Clerk(store, tools).all(),
        plugins=[TurnSagaPlugin(tools, store)],
    )
