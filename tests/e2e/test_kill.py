"""SIGKILL of the worker at random moments: nothing lost, nothing twice."""

import asyncio
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.deployment import deployment_tools
from tests.e2e.worker_process import WorkerProcess, worker_env
from tests.oracle import must_be_whole, truth_of
from tests.stack import (
    REPOSITORY,
    WHO,
    SandboxProcess,
    Turns,
    call,
    eventually,
    reply,
    sandbox_process,
    say,
)
from turnsaga.client import TurnClient
from turnsaga.ledger import State, TurnState
from turnsaga.store import SqlStore, Started

# The short form runs always; the figure of docs/ is of 30.
KILLS = int(os.environ.get("TURNSAGA_KILLS", "4"))
_ids = itertools.count(1)


@dataclass
class Deployment:
    """Turns on a worker process, with vendors of its own."""

    turns: Turns
    worker: WorkerProcess
    sandbox: SandboxProcess


@pytest.fixture
def drain() -> str:
    """Return how many seconds the worker gives its calls at a shutdown."""
    return "10"


@pytest.fixture
async def deployment(client: Client, tmp_path: Path, drain: str) -> AsyncIterator[Deployment]:
    """A ledger, vendors, and a worker that is a process of its own."""
    queue = f"kill-{next(_ids)}"
    database = f"sqlite:///{tmp_path / 'ledger.db'}"
    store = SqlStore(database)
    await store.open()
    async with (
        sandbox_process(tmp_path) as sandbox,
        deployment_tools(sandbox.vendor) as tools,
    ):
        await store.write_tool_cards(tools.cards())
        env = worker_env(client, sandbox.vendor, database=database, task_queue=queue)
        worker = WorkerProcess({**env, "TURNSAGA_DRAIN_S": drain}, tmp_path)
        await worker.start()
        turns = Turns(client, store, tools, TurnClient(client, store, task_queue=queue), queue)
        yield Deployment(turns, worker, sandbox)
        if worker.process is not None and worker.process.returncode is None:
            await worker.end(signal.SIGTERM)
    await store.close()


@pytest.mark.campaign
@pytest.mark.timeout(1200)
async def test_sigkill_at_a_random_moment_loses_nothing_and_doubles_nothing(deployment: Deployment) -> None:
    turns, sandbox = deployment.turns, deployment.sandbox
    await sandbox.knobs("pay", latency_ms=120)
    await sandbox.knobs("crm", latency_ms=120)
    money = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
    done: list[tuple[Started, bool]] = []
    for kill in range(KILLS):
        name = f"K{kill}"
        started = await turns.start(
            reply(call("charge_card", invoice=f"{name}-1", **money), **say("One. ")),
            reply(
                call("create_record", kind="ticket", id=f"{name}-2"),
                call("charge_card", invoice=f"{name}-3", **money),
            ),
            say("Done."),
        )
        await asyncio.sleep(random.uniform(0, 0.9))
        aborted = False
        if kill % 2:
            aborted = (await turns.turns.abort(WHO, started.ref.turn)).first
            await asyncio.sleep(random.uniform(0, 0.3))
        await deployment.worker.end(signal.SIGKILL)
        await deployment.worker.start()
        done.append((started, aborted))

    for started, aborted in done:
        view = await turns.settled(started, within=90)
        assert view.state is (TurnState.ABORTED if aborted else TurnState.COMPLETED)
        # A CRM takes a write once and knows no keys: one whose worker died before it left is looked up,
        # proved not applied, and isn't sent again. A charge is sent again under its key.
        never_left = {effect.tool for effect in view.effects if effect.state is State.FAILED}
        assert never_left <= {"create_record"}
        assert {effect.state.value for effect in view.effects} - {"failed"} <= (
            {"compensated", "released"} if aborted else {"committed"}
        )
    truth = await truth_of(sandbox)
    await turns.must_agree(truth, *(started for started, _ in done))
    for true in truth.effects:
        assert true.applied <= 1, f"{true.identity} was applied {true.applied} times"


async def test_sigkill_between_two_undos_repeats_none(deployment: Deployment) -> None:
    turns, sandbox = deployment.turns, deployment.sandbox
    money = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
    started = await turns.start(
        *(reply(call("charge_card", invoice=f"U-{n}", **money)) for n in range(3)),
        say(*["thinking "] * 400, delay_ms=50),
    )

    async def all_done() -> bool:
        return list((await turns.states(started)).values()) == ["committed"] * 3

    await eventually(all_done)
    await sandbox.knobs("pay", latency_ms=400, only={"op": "undo"})
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.reaches(started, "compensated", "charge_card")
    await deployment.worker.end(signal.SIGKILL)
    await deployment.worker.start()
    await turns.settled(started, within=60)
    truth = await truth_of(sandbox)

    assert set((await turns.states(started)).values()) == {"compensated"}
    assert {(true.applied, true.undone) for true in truth.effects} == {(1, 1)}
    await turns.must_agree(truth, started)


@pytest.mark.parametrize("drain", ["0", "10"], ids=["at once", "within 10 s"])
@pytest.mark.usefixtures("drain")
async def test_sigterm_lets_commits_in_flight_end_and_another_worker_goes_on(
    deployment: Deployment, tmp_path: Path
) -> None:
    """A6.2: a deploy is never an abort, whatever time the calls in flight are given."""
    turns, sandbox, first = deployment.turns, deployment.sandbox, deployment.worker
    second = WorkerProcess(first.env, tmp_path)
    for vendor in ("pay", "crm"):
        await sandbox.knobs(vendor, latency_ms=5000, only={"op": "apply"})
    money = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
    started = await turns.start(
        reply(
            call("charge_card", invoice="S-1", **money),
            call("create_record", kind="ticket", id="S-2"),
        ),
        reply(call("charge_card", invoice="S-3", **money)),
        say("Done."),
    )

    async def both_arrived() -> bool:
        return len([each for each in (await sandbox.truth())["calls"] if each["op"] == "apply"]) == 2

    await eventually(both_arrived, what="two calls on the wire")
    at_the_signal = await turns.states(started)
    code, _ = await asyncio.gather(first.end(signal.SIGTERM), second.start())
    await sandbox.clear()
    view = await must_be_whole(turns, sandbox, started, within=60)
    assert (await second.end(signal.SIGTERM)) == 0
    kinds = {event.kind for event in await turns.events(started)}
    truth = await truth_of(sandbox)

    assert code == 0
    assert list(at_the_signal.values()) == ["committing"] * 2
    assert view.state is TurnState.COMPLETED
    assert [effect.state for effect in view.effects] == [State.COMMITTED] * 3
    assert {(true.applied, true.undone) for true in truth.effects} == {(1, 0)}
    assert not kinds & {"turn_aborting", "tool_compensating"}


async def test_ledger_that_is_away_is_waited_for_and_nothing_is_lost(
    deployment: Deployment, tmp_path: Path
) -> None:
    """The database doesn't answer for some seconds while a charge is in flight."""
    turns, sandbox = deployment.turns, deployment.sandbox
    await sandbox.knobs("pay", latency_ms=500)
    money = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
    started = await turns.start(reply(call("charge_card", invoice="L-1", **money)), say("Done."))
    await turns.reaches(started, "committing", "charge_card")
    await _hold(tmp_path / "ledger.db", seconds=12)
    view = await turns.settled(started, within=60)

    assert view.state is TurnState.COMPLETED
    await turns.must_agree(await truth_of(sandbox), started)
    assert [true.applied for true in (await truth_of(sandbox)).effects] == [1]


async def test_ledger_that_is_away_while_a_turn_settles_is_waited_for_and_nothing_is_undone_twice(
    deployment: Deployment, tmp_path: Path
) -> None:
    """The database doesn't answer for some seconds, from the middle of an undo on."""
    turns, sandbox = deployment.turns, deployment.sandbox
    money = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
    started = await turns.start(
        reply(call("create_record", kind="ticket", id="D-1")),
        reply(call("charge_card", invoice="D-2", **money)),
        say(*["thinking "] * 400, delay_ms=50),
    )
    await turns.reaches(started, "committed", "charge_card")
    await sandbox.knobs("pay", latency_ms=500, only={"op": "undo"})
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.reaches(started, "compensating", "charge_card")
    await _hold(tmp_path / "ledger.db", seconds=12)
    view = await must_be_whole(turns, sandbox, started, within=60)
    undos = [each for each in (await sandbox.truth())["calls"] if each["op"] == "undo"]

    assert view.state is TurnState.ABORTED
    assert {effect.state for effect in view.effects} == {State.COMPENSATED}
    assert {(true.applied, true.undone) for true in (await truth_of(sandbox)).effects} == {(1, 1)}
    assert len(undos) == 2


async def _hold(database: Path, *, seconds: int) -> None:
    """Keep everybody else off a SQLite database for so long."""
    hold = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sqlite3, sys, time\n"
        f"db = sqlite3.connect({json.dumps(str(database))}, isolation_level=None, timeout=30)\n"
        f"db.execute('BEGIN EXCLUSIVE'); print('held', flush=True); time.sleep({seconds})\n"
        "db.execute('ROLLBACK')",
        stdout=asyncio.subprocess.PIPE,
    )
    assert hold.stdout is not None
    assert await hold.stdout.readline() == b"held\n"
    await hold.wait()


async def test_worker_waits_for_a_temporal_that_is_away_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    env = {
        **os.environ,
        "TEMPORAL_ADDRESS": "127.0.0.1:1",
        "TURNSAGA_DATABASE": f"sqlite:///{tmp_path / 'ledger.db'}",
    }
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers", "run", cwd=REPOSITORY, env=env, stdout=output, stderr=output
        )
    try:
        await eventually(
            lambda: b"temporal.unavailable" in log.read_bytes(), within=60, what="a word about Temporal"
        )
    finally:
        waits = process.returncode is None
        if waits:
            process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 15)

    assert waits
    assert code == 0
    assert "127.0.0.1:1" in log.read_text()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TURNSAGA_DATABASE", "mysql://host/name", "'mysql' isn't supported"),
        ("TURNSAGA_DRAIN_S", "soon", "TURNSAGA_DRAIN_S"),
        ("TURNSAGA_SMTP_PORT", "0", "TURNSAGA_SMTP_PORT"),
        ("TURNSAGA_ENV", "staging", "TURNSAGA_ENV"),
    ],
)
async def test_worker_that_can_t_be_run_like_this_says_so_in_one_line(
    variable: str, value: str, said: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workers", "run",
        cwd=REPOSITORY, env={**os.environ, variable: value},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await asyncio.wait_for(process.communicate(), 30)

    assert process.returncode == 2
    assert said in errors.decode()
    assert len(errors.decode().splitlines()) == 1
