"""The crashes of docs/benchmarks.md in short: the counting finds what a plain saga leaves behind."""

from typing import Any

import pytest
from temporalio.client import Client

from benchmarks.crashes.cells import CELLS
from benchmarks.crashes.matrix import crash_matrix
from benchmarks.crashes.rig import crash_rig
from tests.stack import SandboxProcess

SIDE = "naive"


@pytest.fixture(scope="module")
async def lines(
    client: Client, sandbox: SandboxProcess, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    cells = [cell for cell in CELLS if cell.name in {"b", "f", "f2"}]
    async with crash_rig(tmp_path_factory.mktemp("crashes"), client, sandbox, [SIDE]) as rig:
        return {
            line["cell"]: line async for each in crash_matrix(rig, repeat=1, cells=cells) for line in each
        }


async def test_charge_that_was_sent_again_after_a_kill_is_counted_twice(
    lines: dict[str, dict[str, Any]],
) -> None:
    line = lines["b"]

    assert (line["says"], line["agrees"], line["double"]) == ("completed", False, True)
    assert (line["applied"], line["standing"], len(line["applied_twice"])) == (4, 4, 1)


async def test_charge_that_lands_after_a_cancel_is_counted_as_a_leak(
    lines: dict[str, dict[str, Any]],
) -> None:
    line = lines["f"]

    assert (line["says"], line["agrees"], line["leak"]) == ("cancelled", False, True)
    assert (line["applied"], line["undone"], line["standing"]) == (3, 2, 1)


async def test_run_that_is_told_to_stop_and_undoes_everything_counts_as_clean(
    lines: dict[str, dict[str, Any]],
) -> None:
    line = lines["f2"]

    assert (line["says"], line["agrees"], line["stuck"]) == ("failed", True, False)
    assert (line["leak"], line["double"]) == (False, False)
    assert (line["applied"], line["undone"], line["standing"], line["sent"]) == (3, 3, 0, 6)
