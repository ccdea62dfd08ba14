"""Temporal, the web tier and Postgres die with commits and undos on the wire and questions open."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.databases import Postgres, running_postgres
from tests.dev.driver import free_ports
from tests.e2e.api import Stack, stack_at
from tests.e2e.crash_judging import CRASHES, write_report
from tests.e2e.crash_parts import AtTheKill, Ended, answered, begin, judge
from tests.stack import eventually

# By stage, tool and whether it was stopped: the ends of its effects, and the turn's. No part but a worker
# has an answer in hand, so none of these deaths costs one, and nobody is needed.
RIGHT = {
    ("commit in flight", "charge_card", False): (("committed",), "completed"),
    ("commit in flight", "create_record", False): (("committed",), "completed"),
    ("commit in flight", "post_message", False): (("committed",), "completed"),
    ("commit in flight", "charge_card", True): (("compensated",), "aborted"),
    ("commit in flight", "create_record", True): (("compensated",), "aborted"),
    ("commit in flight", "post_message", True): (("standing",), "aborted"),
    ("held", "send_invoice_email", False): (("committed",), "completed"),
    ("held", "send_invoice_email", True): (("released",), "aborted"),
    ("undo in flight", "charge_card, create_record", True): (("compensated", "compensated"), "aborted"),
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A Postgres of this file alone, since it is killed."""
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="module")
async def over_postgres(database: Postgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A development stack whose ledger is that Postgres."""
    folder: Path = tmp_path_factory.mktemp("parts")
    async with stack_at(free_ports(5), folder, "--database", database.new_database()) as stack:
        yield stack


@pytest.mark.timeout(300 * CRASHES)
@pytest.mark.parametrize("part", ["temporal", "web", "postgres"])
async def test_death_of_a_part_costs_no_answer_and_no_person(
    over_postgres: Stack, database: Postgres, part: str
) -> None:
    stack = over_postgres
    for number in range(CRASHES):
        kill = await begin(stack, f"{part}-{number}")
        since = time.monotonic()
        if part == "postgres":
            await _postgres_is_away(stack, database, kill)
        else:
            await stack.kill(part)
        await stack.serves()
        await stack.sandbox.delete("/_control")
        ended = await _ends(stack, kill, since)
        write_report([{"part": part, **asdict(each)} for each in ended])

        assert {(each.stage, each.tool, each.stopped): (each.outcomes, each.turn) for each in ended} == RIGHT
        assert not any(each.person or each.disorder for each in ended)
        assert [each.undone for each in ended] == [each.outcomes.count("compensated") for each in ended]


async def _ends(stack: Stack, kill: AtTheKill, since: float) -> list[Ended]:
    shown = kill.held
    answer = await stack.web.post(
        f"/v1/effects/{shown['effect']}/confirm",
        json={"version": shown["version"], "digest": shown["digest"]},
    )
    assert answer.status_code == 202, answer.text
    return list(await asyncio.gather(*(judge(stack, turn, since=since) for turn in kill.turns)))


async def _postgres_is_away(stack: Stack, database: Postgres, kill: AtTheKill) -> None:
    """Kill it, and start it again once every answer has come: none of them could be written meanwhile."""
    await asyncio.to_thread(database.crash)

    async def all_answered() -> bool:
        return await answered(stack, kill.on_the_wire) == kill.on_the_wire

    await eventually(all_answered, within=60, what="every answer")
    await asyncio.to_thread(database.start)
