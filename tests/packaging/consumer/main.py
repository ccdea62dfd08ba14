"""Run the desk: one turn that completes, one that is stopped, then what stands, as one line of JSON.

``TEMPORAL_ADDRESS`` says where Temporal is, ``DESK_QUEUE`` and ``DESK_FOLDER`` what belongs to this desk.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from temporalio.client import Client

from activities import Shelf
from turnsaga import Principal, SqlStore, TurnClient, TurnSagaPlugin, TurnView
from turnsaga.connecting import temporal_config
from turnsaga.starting import ensure_search_attributes
from workers import desk_worker

WHO = Principal(tenant="library", user="ada")


async def main() -> None:
    """Lend two books for good, and two for nothing."""
    folder, task_queue = Path(os.environ["DESK_FOLDER"]), os.environ["DESK_QUEUE"]
    shelf, store = Shelf(folder / "shelf"), SqlStore(f"sqlite:///{folder / 'ledger.db'}")
    await store.open()
    config = temporal_config()
    config["plugins"] = [TurnSagaPlugin()]
    client = await Client.connect(**config)
    await ensure_search_attributes(client)
    turns = TurnClient(client, store, task_queue=task_queue, default_model="clerk")
    async with await desk_worker(store, shelf, task_queue=task_queue):
        kept = await _kept(turns)
        lent_meanwhile, stopped = await _stopped(turns, shelf)
    await store.close()
    told = {
        "kept": _told(kept),
        "stopped": _told(stopped),
        "lent_meanwhile": lent_meanwhile,
        "lent": shelf.lent(),
    }
    sys.stdout.write(json.dumps(told) + "\n")


async def _kept(turns: TurnClient) -> TurnView:
    started = await turns.start(WHO, "kept", message="Dune, Emma", start_key="1")
    return await turns.settled(WHO, started.ref.turn, timeout_s=60)


async def _stopped(turns: TurnClient, shelf: Shelf) -> tuple[tuple[str, ...], TurnView]:
    started = await turns.start(WHO, "stopped", message="Ulysses, Walden and chat", start_key="1")
    async for event in turns.follow(WHO, started.ref.turn):
        if event is not None and event.kind == "text_delta" and event.data["step"] == 2:
            break
    lent = shelf.lent()
    await turns.abort(WHO, started.ref.turn, reason="closing time")
    return lent, await turns.settled(WHO, started.ref.turn, timeout_s=60)


def _told(turn: TurnView) -> dict[str, str]:
    return {"turn": turn.state, **{effect.title: effect.state for effect in turn.effects}}


asyncio.run(main())
