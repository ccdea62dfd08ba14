"""The leak matrix of docs/benchmarks.md in its short form. TURNSAGA_CAMPAIGN sets the turns an ending."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.client import Client

from benchmarks.leaks.endings import ENDINGS, Ending
from benchmarks.leaks.matrix import leak_matrix
from benchmarks.leaks.rig import LeakRig, leak_rig
from tests.stack import SandboxProcess
from turnsaga.testing import Truth

# Six: each kind of holding meets a stop before and after the killed worker is back.
TURNS = int(os.environ.get("TURNSAGA_CAMPAIGN", "6"))
# The plain saga's mail is out before these endings are brought about; the others it races with.
AFTER_THE_MAIL = {"killed", "stopped", "stale", "losing_branch", "rejected"}

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]
each_ending = pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)


@dataclass(frozen=True)
class Matrix:
    """What a run of all endings has found."""

    rig: LeakRig
    lines: dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
async def matrix(
    client: Client, sandbox: SandboxProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Matrix]:
    async with leak_rig(tmp_path_factory.mktemp("leaks"), client, sandbox) as rig:
        lines = await leak_matrix(rig, turns=TURNS)
        yield Matrix(rig, {(line["side"], line["ending"]): line for line in lines})


@each_ending
async def test_no_mail_goes_out_but_those_that_are_to_and_these_once(matrix: Matrix, ending: Ending) -> None:
    line = matrix.lines["turnsaga", ending.name]

    assert (line["leaked"], line["doubled"]) == (0, 0)
    assert line["arrived"] == line["wanted"]
    assert line["forbidden"] + line["wanted"] >= TURNS


@each_ending
async def test_every_mail_was_held_and_every_turn_came_to_that_end(matrix: Matrix, ending: Ending) -> None:
    """Without this a turn that never came to its mail would count as one that didn't leak."""
    line = matrix.lines["turnsaga", ending.name]

    assert line["prepared"] == line["forbidden"] + line["wanted"]
    assert line["ended"] == {ending.turn.value: TURNS}
    assert line["late_answers_taken"] == 0


@each_ending
async def test_ledger_agrees_with_the_mailbox(matrix: Matrix, ending: Ending) -> None:
    assert matrix.lines["turnsaga", ending.name]["differences"] == []


async def test_ledger_of_all_turns_agrees_and_their_events_are_in_order(
    matrix: Matrix, sandbox: SandboxProcess
) -> None:
    turns = matrix.rig.turns

    await turns.must_agree(Truth.model_validate(await sandbox.truth()), *turns.started)


@each_ending
async def test_mails_of_a_saga_that_commits_at_once_are_counted(matrix: Matrix, ending: Ending) -> None:
    """The counting finds mails where there are some: those of the plain saga, in the same mailbox."""
    line = matrix.lines["bare", ending.name]

    assert line["arrived"] == line["wanted"]
    if ending.name in AFTER_THE_MAIL:
        assert line["leaked"] == line["forbidden"] > 0
    elif not ending.valid:
        assert line["leaked"] > 0
