"""Looks into a development stack where HTTP doesn't: its ledger and its Temporal."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from activities.deployment import deployment_tools
from activities.settings import VendorSettings
from tests.e2e.api import Stack
from tests.oracle import must_be_whole
from tests.stack import WHO, SandboxProcess, Turns
from turnsaga import names
from turnsaga.client import TurnClient
from turnsaga.models import TurnRef, TurnView
from turnsaga.store import SqlStore, Started


@dataclass(frozen=True)
class Insight:
    """Turns of a stack, seen from behind."""

    stack: Stack
    turns: Turns

    @property
    def temporal(self) -> Client:
        return self.turns.client

    async def must_be_whole(self, turn: str, *, within: float = 60) -> TurnView:
        """Fail unless a turn that was started over HTTP ends whole; see ``tests.oracle``."""
        vendors = SandboxProcess(self.stack.sandbox, VendorSettings())
        return await must_be_whole(self.turns, vendors, await self._started(turn), within=within)

    async def _started(self, turn: str) -> Started:
        view = await self.turns.turns.view(WHO, turn)
        ref = TurnRef(tenant=WHO.tenant, turn=turn)
        return Started(ref, view.conversation, view.state, created=True, deadline_ms=None)


@asynccontextmanager
async def insight_into(stack: Stack) -> AsyncIterator[Insight]:
    """Open the stack's ledger and connect to its Temporal."""
    client = await Client.connect(stack.temporal, data_converter=pydantic_data_converter)
    store = SqlStore(stack.env["TURNSAGA_DATABASE"])
    await store.open()
    queue = stack.env.get("TURNSAGA_TASK_QUEUE", names.TASK_QUEUE)
    async with deployment_tools(VendorSettings()) as tools:
        turns = Turns(client, store, tools, TurnClient(client, store, task_queue=queue), queue)
        yield Insight(stack, turns)
    await store.close()
