"""``python -m workers dev`` as it is used: the real parts, killed one after the other, and a second start."""

import json
import os
import signal
from pathlib import Path

import httpx

from tests.dev.driver import Driver, alive, free_ports, running, until
from workers._stack import StackReady

WHO = {"X-Turnsaga-User": "acme/ada"}


def client(ready: StackReady) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=ready.web, headers=WHO, timeout=40)


async def run_turn(ready: StackReady, conversation: str) -> str:
    """Let one turn complete; return its id."""
    start = {"message": json.dumps({"script": [{"text": ["Nothing to do."]}]})}
    async with client(ready) as web:
        started = await web.post(
            f"/v1/conversations/{conversation}/turns",
            json=start,
            headers={"Idempotency-Key": conversation},
        )
        assert started.status_code == 201, started.text
        turn = str(started.json()["turn"])
        assert await state(ready, turn) == "completed"
    return turn


async def state(ready: StackReady, turn: str) -> str:
    async with client(ready) as web:
        answer = await web.get(f"/v1/turns/{turn}", params={"wait": "settled", "timeout": 30})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["state"])


async def kill_and_see_it_back(stack: Driver, part: str, pid: int, url: str | None = None) -> None:
    os.kill(pid, signal.SIGKILL)

    restarted = await stack.restarted(within_s=2)

    assert (restarted.restarted, restarted.was) == (part, pid)
    assert alive({restarted.pid}) == {restarted.pid}
    if url is not None:
        await until(lambda: answers(url), within_s=20)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def end(stack: Driver) -> None:
    family = stack.family()
    stack.signal(signal.SIGTERM)
    assert await stack.end(within_s=45) == (0, "")
    assert alive(family) == set()


async def test_everything_survives_the_death_of_every_part_and_a_second_start(tmp_path: Path) -> None:
    argv = ("-m", "workers", "dev", "--port-base", str(free_ports(5)), "--data", str(tmp_path))
    async with running(*argv) as stack:
        ready = await stack.ready()
        assert ready.pids.temporal is not None
        assert answers(f"{ready.web}/healthz")
        assert answers(f"{ready.sandbox}/healthz")
        first = await run_turn(ready, "first")

        await kill_and_see_it_back(stack, "web", ready.pids.web, f"{ready.web}/healthz")
        await kill_and_see_it_back(stack, "sandbox", ready.pids.sandbox, f"{ready.sandbox}/healthz")
        await kill_and_see_it_back(stack, "worker", ready.pids.worker[0])
        await kill_and_see_it_back(stack, "temporal", ready.pids.temporal, f"{ready.web}/readyz")

        await run_turn(ready, "second")
        await end(stack)

    assert {"ledger.db", "temporal.db", "sandbox.db"} <= names_in(tmp_path)
    async with running(*argv) as stack:
        ready = await stack.ready()

        assert await state(ready, first) == "completed"
        await run_turn(ready, "third")
        await end(stack)
