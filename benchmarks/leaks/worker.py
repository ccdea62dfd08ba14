"""``python -m benchmarks.leaks.worker``: a worker of one side, to be killed and started again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.deployment import deployment_tools
from activities.settings import VendorSettings
from benchmarks.leaks.bare import BilledSaga, Billing
from settings.reading import read_settings
from settings.shared import ledger
from turnsaga.connecting import temporal_config
from turnsaga.logs import configure
from turnsaga.tools import EffectTool, Tools
from workers.build import build_worker, connect, prepare_engine
from workers.settings import WorkerSettings

__all__ = ["mail_depends_on_the_rest"]


async def main() -> None:
    """Work until SIGTERM."""
    configure("production")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    made = _bare() if os.environ["TURNSAGA_BENCH_SIDE"] == "bare" else _turnsaga()
    async with made as worker, worker:
        await asyncio.to_thread(Path(os.environ["TURNSAGA_BENCH_READY"]).touch)
        await stop.wait()


def mail_depends_on_the_rest(tools: Tools) -> Tools:
    """Return the deployment's tools as somebody declares them who mails only what was charged and noted.

    A charge or an update that fails stops the turn; without that the model would be told, and go on.
    """
    return Tools(
        [
            replace(tool, on_failure="abort_turn")
            if isinstance(tool, EffectTool) and tool.name in {"charge_card", "update_record"}
            else tool
            for tool in tools
        ]
    )


@asynccontextmanager
async def _turnsaga() -> AsyncIterator[Worker]:
    settings = read_settings(WorkerSettings)
    store = ledger(settings)
    async with deployment_tools(read_settings(VendorSettings)) as declared:
        tools = mail_depends_on_the_rest(declared)
        await store.open(patience_s=60)
        await store.write_tool_cards(tools.cards())
        client = await connect()
        await prepare_engine(client, settings)
        yield build_worker(client, store, settings, tools=tools)
    await store.close()


@asynccontextmanager
async def _bare() -> AsyncIterator[Worker]:
    billing = Billing(read_settings(VendorSettings))
    yield Worker(
        await Client.connect(**temporal_config()),
        task_queue=os.environ["TURNSAGA_TASK_QUEUE"],
        workflows=[BilledSaga],
        activities=[billing.mail, billing.charge, billing.refund, billing.read, billing.update],
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("benchmarks")
        ),
    )


if __name__ == "__main__":
    asyncio.run(main())
