"""What the doctor says of what it found: pure, so over all of it."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from temporalio.api.enums.v1 import IndexedValueType

from turnsaga.cli._doctor._clocks import FAIL_ABOVE, WARN_ABOVE, Reading, judge_ahead, judge_reading
from turnsaga.cli._doctor._ledger import judge_schema
from turnsaga.cli._doctor._ledger import judge_server as judge_database
from turnsaga.cli._doctor._packages import judge_packages, judge_python
from turnsaga.cli._doctor._running import Checked, Unasked, run_checks, worst
from turnsaga.cli._doctor._temporal import (
    Sweeps,
    judge_attributes,
    judge_engine,
    judge_server,
    judge_sweeps,
)
from turnsaga.cli._doctor._tools import judge_cards, judge_needed, judge_tool
from turnsaga.deployment import Check, Finding, Status
from turnsaga.starting import SEARCH_ATTRIBUTES
from turnsaga.store import EngineName
from turnsaga.testing import FakeSystem, Note
from turnsaga.tools import CommitPolicy, EffectTool, Once, Tools

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
FAKE = FakeSystem()


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("theirs", "status", "says"),
    [
        (0.0, Status.OK, "agrees"),
        (1.2, Status.OK, "agrees"),
        (-1.0, Status.OK, "agrees"),
        (1.3, Status.WARN, "1.100 s ahead of"),
        (-1.1, Status.WARN, "1.100 s behind"),
        (5.2, Status.WARN, "5.000 s ahead of"),
        (5.3, Status.FAIL, "5.100 s ahead of"),
        (-5.1, Status.FAIL, "5.100 s behind"),
        (86400.2, Status.FAIL, "86400.000 s ahead of"),
    ],
)
def test_clock_that_can_be_asked(theirs: float, status: Status, says: str) -> None:
    """The question took 0.2 s, which is never counted against the other clock."""
    found = judge_reading("the database", Reading(at(0), at(theirs), at(0.2)))

    assert found.status is status
    assert says in found.what
    assert bool(found.remedy) is (status is not Status.OK)


@given(offset=st.floats(-20, 20), trip=st.floats(0, 3), share=st.floats(0, 1))
def test_skew_is_never_overstated(offset: float, trip: float, share: float) -> None:
    reading = Reading(at(0), at(trip * share + offset), at(trip))
    microsecond = timedelta(microseconds=2)

    assert abs(reading.skew) <= abs(timedelta(seconds=offset)) + microsecond
    assert abs(reading.skew) >= abs(timedelta(seconds=offset)) - timedelta(seconds=trip) - microsecond


@pytest.mark.parametrize(
    ("newest", "status"),
    [
        (None, Status.OK),
        (-3600.0, Status.OK),
        (WARN_ABOVE.total_seconds(), Status.OK),
        (WARN_ABOVE.total_seconds() + 0.001, Status.WARN),
        (FAIL_ABOVE.total_seconds(), Status.WARN),
        (FAIL_ABOVE.total_seconds() + 0.001, Status.FAIL),
    ],
)
def test_clock_that_left_an_instant(newest: float | None, status: Status) -> None:
    assert judge_ahead("a worker", None if newest is None else at(newest), NOW).status is status


@pytest.mark.parametrize(
    ("revision", "status", "says"),
    [
        ("0003", Status.OK, "at revision 0003"),
        ("0002", Status.FAIL, "behind this version's 0003"),
        (None, Status.WARN, "empty"),
        ("0004", Status.FAIL, "doesn't know"),
    ],
)
def test_schema(revision: str | None, status: Status, says: str) -> None:
    found = judge_schema(revision, head="0003", known=["0001", "0002", "0003"])

    assert found.status is status
    assert says in found.what


@pytest.mark.parametrize(
    ("kind", "version", "status"),
    [
        ("sqlite", (3, 34, 1), Status.FAIL),
        ("sqlite", (3, 35, 0), Status.OK),
        ("postgresql", (13, 9), Status.FAIL),
        ("postgresql", (14,), Status.OK),
        ("postgresql", (17, 2), Status.OK),
    ],
)
def test_database_s_version(kind: str, version: tuple[int, ...], status: Status) -> None:
    assert judge_database(kind, version, "here").status is status


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("1.31.4", Status.WARN),
        ("1.32.0", Status.OK),
        ("1.40.0-rc.1", Status.OK),
        ("2.0.0", Status.OK),
        ("", Status.OK),
    ],
)
def test_temporal_s_version(version: str, status: Status) -> None:
    assert judge_server(version, "here").status is status


def test_search_attributes() -> None:
    short = dict(list(SEARCH_ATTRIBUTES.items())[1:])
    wrong = {**SEARCH_ATTRIBUTES, "NeedsAttention": IndexedValueType.INDEXED_VALUE_TYPE_TEXT}
    missing, mistyped = judge_attributes(short), judge_attributes(wrong)

    assert judge_attributes(SEARCH_ATTRIBUTES).status is Status.OK
    assert missing.status is mistyped.status is Status.FAIL
    assert "--name TurnStatus --type Keyword" in missing.remedy
    assert "NeedsAttention" in mistyped.what


SWEEPS = Sweeps(name="q-sweep", paused=False, note=None, every=60 * SECOND, last=NOW)


@pytest.mark.parametrize(
    ("sweeps", "after", "status", "says"),
    [
        (SWEEPS, 0, Status.OK, "every 60 s"),
        (SWEEPS, 180, Status.OK, "last 180 s ago"),
        (SWEEPS, 181, Status.WARN, "began 181 s ago"),
        (replace(SWEEPS, paused=True, note="by ops"), 0, Status.FAIL, r"paused \(by ops\)"),
        (replace(SWEEPS, paused=True), 900, Status.FAIL, "is paused: nobody"),
        (replace(SWEEPS, failed="failed"), 0, Status.FAIL, "ended as failed"),
    ],
)
def test_sweeper(sweeps: Sweeps, after: float, status: Status, says: str) -> None:
    found = judge_sweeps(sweeps, at(after))

    assert found.status is status
    assert re.search(says, found.what)


HERE = EngineName("cluster", "default")


@pytest.mark.parametrize(
    ("known", "adopts", "status"),
    [
        (None, False, Status.OK),
        (HERE, False, Status.OK),
        (EngineName("cluster", "other"), False, Status.FAIL),
        (EngineName("other", "default"), False, Status.FAIL),
        (EngineName("other", "default"), True, Status.WARN),
    ],
)
def test_engine(known: EngineName | None, adopts: bool, status: Status) -> None:  # noqa: FBT001
    assert judge_engine(known, HERE, adopts=adopts).status is status


@pytest.mark.parametrize(
    ("tool", "status", "says"),
    [
        (FAKE.tool("a"), Status.OK, "reversible, keyed for 1 h, look-up"),
        (FAKE.tool("a", repeat=Once()), Status.OK, "sent once, look-up"),
        (FAKE.tool("a", lookup=None), Status.OK, "keyed for 1 h, no look-up"),
        (FAKE.tool("a", lookup=None, repeat=Once()), Status.WARN, "nobody can find out what it did"),
        (FAKE.tool("a", reversible=False), Status.OK, r"irreversible \(a note of this kind stays\)"),
        (FAKE.tool("a", reversible=False, lookup=None, repeat=Once()), Status.WARN, "nor undo it"),
        (
            FAKE.tool("a", reversible=False, commits=CommitPolicy.IMMEDIATE_BY_NAME),
            Status.WARN,
            "commits without being asked for",
        ),
        (FAKE.tool("a", undo_repeat=Once()), Status.WARN, "never sent again nor read back"),
    ],
)
def test_tool(tool: EffectTool[Note], status: Status, says: str) -> None:
    found = judge_tool(tool)

    assert found.status is status
    assert re.search(says, found.what)
    assert bool(found.remedy) is (status is Status.WARN)


def test_effects_of_a_tool_that_is_gone() -> None:
    tools = Tools([FAKE.tool("here")])

    assert judge_needed({"here": 2}, tools).status is Status.OK
    lost = judge_needed({"here": 2, "gone": 3}, tools)
    assert lost.status is Status.FAIL
    assert "3 of 'gone'" in lost.what


def test_tools_of_the_worker_that_started_last() -> None:
    old, new = Tools([FAKE.tool("a"), FAKE.tool("b")]), Tools([FAKE.tool("a"), FAKE.tool("c")])

    assert judge_cards(old.cards(), old).status is Status.OK
    assert judge_cards({}, old).status is Status.WARN
    changed = judge_cards(old.cards(), new)
    assert changed.status is Status.WARN
    assert changed.what.endswith("b, c")


def test_packages() -> None:
    def installed(name: str) -> str:
        if name == "gone":
            raise PackageNotFoundError(name)
        return "2.0"

    assert judge_packages([Requirement("a>=2.0")], installed) == Finding.ok("a 2.0")
    wrong = judge_packages([Requirement("a>=2.1"), Requirement("gone>=1"), Requirement("b>=1")], installed)
    assert wrong.status is Status.FAIL
    assert wrong.what == "a 2.0 isn't >=2.1; gone is missing"


@pytest.mark.parametrize(("here", "status"), [((3, 10, 9), Status.FAIL), ((3, 11, 0), Status.OK)])
def test_python(here: tuple[int, ...], status: Status) -> None:
    assert judge_python(here).status is status


async def test_checks_stand_alone_in_time_and_in_failure() -> None:
    async def well() -> Finding:
        return Finding.ok("well")

    async def hangs() -> Finding:
        await asyncio.Event().wait()
        raise AssertionError

    async def explodes() -> Finding:
        raise ConnectionError("https://user:hunter2@vendor")

    async def waits() -> Finding:
        raise Unasked("it isn't there", "the.other")

    runs: dict[str, Callable[[], Awaitable[Finding]]] = {
        "first": well,
        "hangs": hangs,
        "explodes": explodes,
        "waits": waits,
        "last": well,
    }
    checks = [Check(name, run) for name, run in runs.items()]
    found = await run_checks(checks, within=timedelta(milliseconds=50))

    assert [(each.check, each.status.value) for each in found] == [
        ("first", "ok"),
        ("hangs", "fail"),
        ("explodes", "fail"),
        ("waits", "warn"),
        ("last", "ok"),
    ]
    assert found[1].what == "no answer within 0.05 s"
    assert "ConnectionError" in found[2].what
    assert "hunter2" not in found[2].model_dump_json()
    assert (found[3].what, found[3].remedy) == ("not checked: it isn't there", "see the.other")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [("", "ok"), ("ok", "ok"), ("ok warn", "warn"), ("fail warn ok", "fail"), ("warn fail", "fail")],
)
def test_worst(statuses: str, expected: str) -> None:
    found = [Checked(check="x", status=Status(word), what="", remedy="") for word in statuses.split()]

    assert worst(found) == expected
