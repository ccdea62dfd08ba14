"""Logs: one line an event, readable by machines or by people, and nothing said twice by a replay."""

import json
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import structlog
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from turnsaga.logs import configure, drop_in_replay

_log: structlog.stdlib.BoundLogger = structlog.get_logger("turnsaga.test")


@pytest.fixture
def restored() -> Iterator[None]:
    """Put back what a configuration changes."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@workflow.defn(sandboxed=False)
class Talker:
    """Says one thing before and one after a timer. Without a cache the second task replays the first."""

    @workflow.run
    async def run(self) -> int:
        _log.info("talker.before")
        await workflow.sleep(timedelta(milliseconds=10))
        _log.info("talker.after")
        return workflow.info().get_current_history_length()


@pytest.mark.usefixtures("restored")
async def test_replay_says_nothing_again(client: Client) -> None:
    lines: list[str] = []

    def keep(_logger: object, _method: str, event: structlog.typing.EventDict) -> str:
        lines.append(event["event"])
        raise structlog.DropEvent

    async def run(*processors: structlog.typing.Processor) -> list[str]:
        lines.clear()
        structlog.configure(processors=[*processors, keep])
        async with Worker(client, task_queue="talkers", workflows=[Talker], max_cached_workflows=0):
            await client.execute_workflow(Talker.run, id=f"talker-{len(processors)}", task_queue="talkers")
        return list(lines)

    with_it = await run(drop_in_replay)
    without_it = await run()

    assert with_it == ["talker.before", "talker.after"]
    assert without_it == ["talker.before", "talker.before", "talker.after"]


def test_outside_of_workflows_everything_is_said() -> None:
    event = {"event": "x"}

    assert drop_in_replay(None, "info", event) is event


@pytest.mark.usefixtures("restored")
def test_production_logs_one_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure("production")
    structlog.contextvars.bind_contextvars(tenant="acme")
    _log.info("thing.happened", size_bytes=3, other=object)
    _log.debug("thing.unsaid")
    logging.getLogger("vendor.library").warning("slow %s", "answer", extra={"attempt": 2})
    try:
        int("bad\nvalue")
    except ValueError:
        _log.exception("thing.failed")

    lines: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["thing.happened", "slow answer", "thing.failed"]
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    assert [line["logger"] for line in lines] == ["turnsaga.test", "vendor.library", "turnsaga.test"]
    assert all(line["tenant"] == "acme" and line["timestamp"].endswith("Z") for line in lines)
    assert (lines[0]["size_bytes"], lines[1]["attempt"]) == (3, 2)
    assert lines[2]["exception"].startswith(f"ValueError\n  at {__file__}:")
    assert "invalid literal" not in lines[2]["exception"]


@pytest.mark.usefixtures("restored")
def test_development_logs_are_readable_and_show_no_local_variables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("development")
    credential = "hunter" + str(len("ab"))
    try:
        int(credential[:1])
    except ValueError:
        _log.exception("thing.failed", tool="charge")

    err = capsys.readouterr().err
    assert "thing.failed" in err
    assert "tool=charge" in err
    assert "ValueError: invalid literal" in err
    assert "hunter2" not in err
    assert not err.startswith("{")


@pytest.mark.usefixtures("restored")
def test_second_configuration_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    configure("development")
    configure("production")
    _log.info("thing.happened")

    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["thing.happened"]


@pytest.mark.usefixtures("restored")
def test_clients_of_http_do_not_repeat_each_request(capsys: pytest.CaptureFixture[str]) -> None:
    configure("production")
    logging.getLogger("httpx").info("HTTP Request")
    logging.getLogger("httpx").warning("HTTP trouble")

    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["HTTP trouble"]
