"""Production's lines say an error's types and places, and nothing that its text says."""

import asyncio
import gc
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from temporalio.exceptions import ApplicationError

from tests.logs.captured import captured
from turnsaga.errors import (
    DeclarationError,
    EngineUnavailable,
    ModelUnavailable,
    NotApplied,
    StoreUnavailable,
    TurnSagaError,
)

MARK = "ada@example.com owes 4711"
_log: structlog.stdlib.BoundLogger = structlog.get_logger("turnsaga.test")


def plain() -> None:
    raise ValueError(MARK)


def caused() -> None:
    try:
        plain()
    except ValueError as error:
        raise KeyError("outer " + MARK) from error


def in_its_course() -> None:
    try:
        plain()
    except ValueError:
        raise RuntimeError(MARK)  # noqa: B904  # an error in the handling of another


def grouped() -> None:
    raise ExceptionGroup(MARK, [ValueError(MARK), OSError(5, MARK)])


def noted() -> None:
    error = ValueError("short")
    error.add_note(MARK)
    raise error


def from_a_tool() -> None:
    raise NotApplied(MARK)


def across_temporal() -> None:
    raise ApplicationError(MARK, MARK, type="PrepareFailed")


@pytest.mark.parametrize(
    ("fail", "types"),
    [
        (plain, ["ValueError"]),
        (caused, ["KeyError", "ValueError"]),
        (in_its_course, ["RuntimeError", "ValueError"]),
        (grouped, ["ExceptionGroup", "ValueError", "OSError"]),
        (noted, ["ValueError"]),
        (from_a_tool, ["turnsaga.errors.NotApplied"]),
        (across_temporal, ["temporalio.exceptions.ApplicationError (PrepareFailed)"]),
    ],
)
@pytest.mark.parametrize("by", ["structlog", "logging"])
def test_text_of_an_error_is_left_out(fail: Callable[[], None], types: list[str], by: str) -> None:
    with captured("production") as logs:
        try:
            fail()
        except Exception as error:  # all of them
            if by == "structlog":
                _log.exception("it.failed", tool="charge")
                _log.error("it.failed", exc_info=error)
            else:
                logging.getLogger("vendor").exception("it failed: %s", error)  # noqa: TRY401  # as others do
                logging.getLogger("vendor").exception("it failed: %r", error)  # noqa: TRY401  # as above

    assert len(logs.lines) == 2
    for line in logs.lines:
        told = line["exception"].split("\n")
        assert [each for each in told if not each.startswith("  at ")] == types
        assert f" in {fail.__name__}" in line["exception"]
        assert __file__ in line["exception"]
    for word in ("ada", "4711", "owes"):
        assert word not in logs.text.replace(__file__, "")


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("postgresql://host/ledger", "connection refused"),
        EngineUnavailable("temporal:7233", "UNAVAILABLE", "nothing was asked"),
        ModelUnavailable("anthropic:x", "it answered 529", retryable=True),
        DeclarationError("charge", "it has no undo", "give one"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_wrong_with_a_part_of_the_deployment_is_said(error: TurnSagaError) -> None:
    with captured("production") as logs:
        _log.error("it.failed", exc_info=error)

    assert logs.lines[0]["exception"].endswith(f": {error}")


def test_debug_lines_keep_the_text_for_who_asks_for_them() -> None:
    with captured("production") as logs:
        _log.debug("unheard", exc_info=ValueError(MARK))
        logging.getLogger("turnsaga.test").setLevel(logging.DEBUG)
        try:
            _log.debug("it.failed", exc_info=ValueError(MARK))
            _log.warning("it.failed", exc_info=ValueError(MARK))
        finally:
            logging.getLogger("turnsaga.test").setLevel(logging.NOTSET)

    debug, warning = logs.lines
    assert MARK in debug["exception"]
    assert MARK not in str(warning)


def test_development_shows_it_all() -> None:
    with captured("development") as logs:
        _log.error("it.failed", exc_info=ValueError(MARK))

    assert MARK in logs.text


def test_foreign_line_is_cut_to_its_first_and_heard_only_if_it_is_grave() -> None:
    with captured("production") as logs:
        logging.getLogger("stripe").info("error_message=%s", MARK)
        logging.getLogger("uvicorn.error").error("it broke\n%s", MARK)
        _log.info("it.goes", note="two\nlines")

    assert [line["event"] for line in logs.lines] == ["it broke", "it.goes"]
    assert logs.lines[1]["note"] == "two\nlines"
    assert MARK not in logs.text


async def test_task_that_nobody_awaits_tells_no_text() -> None:
    """Asyncio writes the task's repr into its line, and that holds the error's."""
    with captured("production") as logs:

        async def fails() -> None:
            raise ValueError(MARK)

        task = asyncio.get_running_loop().create_task(fails())
        await asyncio.wait({task})
        del task
        gc.collect()

    [line] = [line for line in logs.lines if line["logger"] == "asyncio"]
    assert "never retrieved" in line["event"]
    assert MARK not in logs.text


def test_warning_is_a_line_that_names_its_place(tmp_path: Path) -> None:
    script = tmp_path / "warns.py"
    script.write_text(
        "import warnings\n"
        "from turnsaga.logs import configure\n"
        "configure('production')\n"
        f"warnings.warn({MARK!r}, UserWarning)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)

    line = json.loads(done.stderr)
    assert (line["level"], line["logger"]) == ("warning", "py.warnings")
    assert line["event"] == f"{script}:4: UserWarning"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_dies_is_a_line() -> None:
    with captured("production") as logs:
        thread = threading.Thread(target=plain)
        thread.start()
        thread.join()

    [line] = logs.lines
    assert (line["event"], line["level"]) == ("thread.died", "critical")
    assert MARK not in logs.text


DIES = f"raise ValueError({MARK!r})"
LOSES = f"""
class Lost:
    def __del__(self):
        raise ValueError({MARK!r})
Lost()
"""


@pytest.mark.parametrize(
    ("code", "exits", "event"), [(DIES, 1, "process.died"), (LOSES, 0, "error.unraisable")]
)
def test_what_the_interpreter_would_print_is_a_line(code: str, exits: int, event: str) -> None:
    begin = "from turnsaga.logs import configure\nconfigure('production')\n"
    done = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, check=False)

    assert done.returncode == exits
    line = json.loads(done.stderr)
    assert line["event"] == event
    assert line["exception"].startswith("ValueError\n  at ")
    assert MARK not in done.stderr
