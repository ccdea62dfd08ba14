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
from turnsaga.testing import Truth

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
async def deployment(client: Client, tmp_path: Path) -> AsyncIterator[Deployment]:
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
        worker = WorkerProcess(
            worker_env(client, sandbox.vendor, database=database, task_queue=queue), tmp_path
        )
        await worker.start()
        turns = Turns(client, store, tools, TurnClient(client, store, task_queue=queue), queue)
        yield Deployment(turns, worker, sandbox)
        if worker.process is not None and worker.process.returncode is None:
            await worker.end(signal.SIGTERM)
    await store.close()


async def truth_of(sandbox: SandboxProcess) -> Truth:
    return Truth.model_validate(await sandbox.truth())


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


async def test_sigterm_lets_a_commit_in_flight_end_and_aborts_nothing(deployment: Deployment) -> None:
    turns, sandbox = deployment.turns, deployment.sandbox
    await sandbox.knobs("pay", latency_ms=2000)
    money = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
    started = await turns.start(reply(call("charge_card", invoice="S-1", **money)), say("Done."))
    await turns.reaches(started, "committing", "charge_card")
    code = await deployment.worker.end(signal.SIGTERM)
    before_restart = await turns.states(started)
    await deployment.worker.start()
    view = await turns.settled(started, within=60)
    calls = [each for each in (await sandbox.truth())["calls"] if each["op"] == "apply"]

    assert code == 0
    assert before_restart == {"charge_card S-1": "committed"}
    assert view.state is TurnState.COMPLETED
    assert len(calls) == 1


async def test_ledger_that_is_away_is_waited_for_and_nothing_is_lost(
    deployment: Deployment, tmp_path: Path
) -> None:
    """The database doesn't answer for some seconds while a charge is in flight."""
    turns, sandbox = deployment.turns, deployment.sandbox
    await sandbox.knobs("pay", latency_ms=500)
    money = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
    started = await turns.start(reply(call("charge_card", invoice="L-1", **money)), say("Done."))
    await turns.reaches(started, "committing", "charge_card")
    hold = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sqlite3, sys, time\n"
        f"db = sqlite3.connect({json.dumps(str(tmp_path / 'ledger.db'))}, isolation_level=None, timeout=30)\n"
        "db.execute('BEGIN EXCLUSIVE'); print('held', flush=True); time.sleep(12); db.execute('ROLLBACK')",
        stdout=asyncio.subprocess.PIPE,
    )
    assert hold.stdout is not None
    assert await hold.stdout.readline() == b"held\n"
    await hold.wait()
    view = await turns.settled(started, within=60)

    assert view.state is TurnState.COMPLETED
    await turns.must_agree(await truth_of(sandbox), started)
    assert [true.applied for true in (await truth_of(sandbox)).effects] == [1]


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
    await eventually(lambda: b"temporal.unavailable" in log.read_bytes(), what="a word about Temporal")
    waits = process.returncode is None
    process.send_signal(signal.SIGTERM)

    assert waits
    assert await asyncio.wait_for(process.wait(), 15) == 0
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
