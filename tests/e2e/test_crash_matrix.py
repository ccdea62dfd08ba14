"""SIGKILL of the worker at every point of a commit and of an undo, with every kind of tool in hand."""

import asyncio

import pytest
from temporalio.client import Client

from tests.e2e.crash_cells import CELLS, NEEDS_A_PERSON, Cell
from tests.e2e.crash_judging import CRASHES, Judged
from tests.e2e.crash_rounds import ROUNDS, run_round


@pytest.fixture(scope="module")
async def matrix(client: Client, tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    """Every cell, so often: the rounds of a repeat overlap, each on parts of its own."""
    found: list[Judged] = []
    for _ in range(CRASHES):
        folder = tmp_path_factory.mktemp("crashes")
        alone = asyncio.Lock()
        rounds = (run_round(client, folder / each.name, each, alone=alone) for each in ROUNDS)
        for judged in await asyncio.gather(*rounds):
            found += judged
    return found


@pytest.mark.timeout(300 * CRASHES)
def test_each_cell_was_killed_at_its_point_and_judged(matrix: list[Judged]) -> None:
    assert len(matrix) == len(CELLS) * CRASHES
    assert {each.key for each in matrix} == {cell.key for cell in CELLS}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_turn_whose_worker_was_killed_ends_right(matrix: list[Judged], cell: Cell) -> None:
    """Nothing twice, nothing lost, nothing kept quiet, and no person where the system can tell."""
    for each in matrix:
        if each.key != cell.key:
            continue
        assert (each.duplicates, each.lost, each.silent, each.disorder) == (0, (), (), ()), each
        assert each.outcome == cell.outcome
        assert each.turn == ("aborted" if cell.stopped else "completed")
        assert each.earlier == (None if cell.earlier is None else "compensated")
        assert each.person == (cell.outcome in NEEDS_A_PERSON)
        assert each.next_turn == "completed"


def test_nobody_is_needed_where_the_system_can_tell(matrix: list[Judged]) -> None:
    able = {cell.key for cell in CELLS if cell.needs_nobody}
    needed = {each.key for each in matrix if each.person}

    assert len(able) > len(CELLS) / 2
    assert needed & able == set()
