"""Recorded histories replay on today's code: what runs somewhere goes on after a deploy."""

import base64
import json
from pathlib import Path
from typing import cast

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from tests.replay.record import STORIES
from turnsaga.plugin import TurnSagaPlugin
from turnsaga.recovery import RecoverTurn, Sweep
from workflows.agent_turn import AgentTurn

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def replayer() -> Replayer:
    return Replayer(
        workflows=[AgentTurn, RecoverTurn, Sweep],
        plugins=[TurnSagaPlugin()],
        data_converter=pydantic_data_converter,
    )


def load(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text(encoding="utf-8"))


def test_each_story_was_recorded_with_and_without_a_cache() -> None:
    assert {path.stem for path in HISTORIES} == {
        f"{name}{suffix}" for name in STORIES for suffix in ("", "-uncached")
    }


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_history_replays(path: Path) -> None:
    await replayer().replay_workflow(load(path))


async def test_history_of_another_story_is_refused() -> None:
    """The check can fail: a history that ends otherwise than its events led to isn't replayed quietly."""
    path = next(path for path in HISTORIES if path.stem == "completed")
    text = path.read_text(encoding="utf-8").replace("charge_card.commit", "charge_card.lookup")

    with pytest.raises(Exception, match=r"(?i)nondeterminism|activity type"):
        await replayer().replay_workflow(WorkflowHistory.from_json("completed", text))


def decoded(value: object) -> str:
    """Return everything that a history says, with its payloads decoded."""
    if isinstance(value, dict):
        return " ".join(
            _payload(item) if key == "data" and isinstance(item, str) else decoded(item)
            for key, item in cast("dict[str, object]", value).items()
        )
    if isinstance(value, list):
        return " ".join(decoded(item) for item in cast("list[object]", value))
    return str(value)


def _payload(text: str) -> str:
    return base64.b64decode(text).decode(errors="replace")


def test_histories_hold_no_arguments_messages_or_credentials() -> None:
    for path in HISTORIES:
        text = decoded(json.loads(path.read_text(encoding="utf-8")))
        for kept_out in ("cus_1", "sk_test", "crm_sandbox", "ada@", "thinking", '"calls":[{"tool"'):
            assert kept_out not in text, f"{kept_out} in {path.name}"
        assert "site-packages" not in text, f"a path of the machine that recorded {path.name}"
        assert "INV-" in text, "the payloads were decoded"
