"""A process whose workflow task fails: ``python failing_worker.py ADDRESS QUEUE TEXT``."""

import asyncio
import sys

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from turnsaga.logs import configure, forward_engine_logs, leave_after


@workflow.defn(sandboxed=False)
class Failing:
    """Fails its task, with the text that it was given in the error's."""

    @workflow.run
    async def run(self, text: str) -> None:
        raise ValueError(text)


async def main(address: str, queue: str, text: str) -> None:
    client = await Client.connect(address)
    async with Worker(client, task_queue=queue, workflows=[Failing]):
        handle = await client.start_workflow(Failing.run, text, id=queue, task_queue=queue)
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.HasField("workflow_task_failed_event_attributes"):
                break
        await handle.terminate()


if __name__ == "__main__":
    configure("production")
    forward_engine_logs("production")
    leave_after(lambda: asyncio.run(main(*sys.argv[1:])))
