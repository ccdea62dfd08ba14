"""What Temporal's SDK and its core have to say comes in the same shape, and as discreetly."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from temporalio.client import Client

SCRIPT = Path(__file__).with_name("failing_worker.py")
MARK = "zqmark"


async def test_failed_workflow_task_is_told_by_sdk_and_core(client: Client) -> None:
    address = client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), address, "failing-tasks", MARK, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    lines = [json.loads(line) for line in err.decode().splitlines()]
    loggers = {line["logger"] for line in lines}

    assert process.returncode == 0
    assert out == b"", "the core by itself writes its own lines, in its own shape"
    assert "temporalio.core" in loggers
    assert "temporalio.worker._workflow_instance" in loggers
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)
    assert any(line.get("exception", "").startswith("ValueError\n  at ") for line in lines)
    assert MARK not in err.decode()
