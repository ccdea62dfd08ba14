"""The supervisor over real processes and real signals; only what the parts do is a stub."""

import json
import os
import signal
import socket
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.dev.driver import Driver, alive, running, until


def stubs(directory: Path, **spec: object) -> AbstractAsyncContextManager[Driver]:
    return running("-m", "tests.dev.stub_stack", str(directory), json.dumps(spec))


def children(directory: Path) -> list[int]:
    return [int(line) for line in (directory / "children").read_text().split()]


async def test_ready_line_names_every_process(tmp_path: Path) -> None:
    async with stubs(tmp_path) as stack:
        ready = await stack.ready()

        pids = ready.pids
        named = {pids.temporal, *pids.worker, pids.web, pids.sandbox}
        assert len(named) == 5
        assert alive(pid for pid in named if pid is not None) == named
        assert {os.getsid(pid) for pid in named if pid is not None} == named


async def test_sigterm_ends_the_parts_in_order_and_leaves_nothing(tmp_path: Path) -> None:
    async with stubs(tmp_path) as stack:
        await stack.ready()
        family = stack.family()

        stack.signal(signal.SIGTERM)

        assert await stack.end() == (0, "")
        assert (tmp_path / "ended").read_text().split() == ["web", "worker", "worker", "sandbox", "temporal"]
        assert alive(family) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_a_terminal_that_interrupts_or_closes_ends_it_as_sigterm_does(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with stubs(tmp_path) as stack:
        await stack.ready()

        stack.signal(number)

        assert await stack.end() == (0, "")
        assert (tmp_path / "ended").read_text().split()[-1] == "temporal"


async def test_a_killed_part_is_restarted_within_a_second(tmp_path: Path) -> None:
    async with stubs(tmp_path) as stack:
        ready = await stack.ready()
        assert ready.pids.temporal is not None
        pids = {
            "temporal": ready.pids.temporal,
            "worker": ready.pids.worker[1],
            "web": ready.pids.web,
            "sandbox": ready.pids.sandbox,
        }
        for part, pid in pids.items():
            os.kill(pid, signal.SIGKILL)
            restarted = await stack.restarted(within_s=1)

            assert (restarted.restarted, restarted.was) == (part, pid)
            assert alive({restarted.pid}) == {restarted.pid}


async def test_a_part_that_dies_again_and_again_is_restarted_within_a_second_each_time(
    tmp_path: Path,
) -> None:
    async with stubs(tmp_path) as stack:
        pid = (await stack.ready()).pids.web
        for _ in range(7):
            os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            pid = (await stack.restarted(within_s=2)).pid
            assert time.monotonic() - killed < 1
        stack.signal(signal.SIGTERM)

        code, said = await stack.end()
        assert code == 0
        assert "web ended 5 times in a row" in said


async def test_restarts_go_on_when_nobody_reads_the_lines(tmp_path: Path) -> None:
    async with stubs(tmp_path) as stack:
        ready = await stack.ready()
        stack.close_stdout()
        before = stack.family()

        os.kill(ready.pids.web, signal.SIGKILL)

        await until(lambda: len(alive(stack.family() - before)) == 1)
        stack.signal(signal.SIGTERM)
        assert await stack.end() == (0, "")


async def test_a_part_that_stays_after_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    async with stubs(tmp_path, behaviour={"worker": ["--deaf"]}, grace_s=0.5) as stack:
        await stack.ready()
        family = stack.family()

        stack.signal(signal.SIGTERM)

        assert await stack.end(within_s=10) == (0, "")
        assert alive(family) == set()


async def test_a_second_interrupt_waits_for_nobody(tmp_path: Path) -> None:
    async with stubs(tmp_path, behaviour={"web": ["--deaf"]}, grace_s=60) as stack:
        await stack.ready()
        family = stack.family()

        stack.signal(signal.SIGINT)
        await until((tmp_path / "ended").exists)
        stack.signal(signal.SIGINT)

        assert await stack.end(within_s=10) == (0, "")
        assert alive(family) == set()


async def test_what_a_part_started_ends_with_it(tmp_path: Path) -> None:
    async with stubs(tmp_path, behaviour={"sandbox": ["--child"]}) as stack:
        ready = await stack.ready()
        (first,) = children(tmp_path)

        os.kill(ready.pids.sandbox, signal.SIGKILL)
        await stack.restarted()
        assert alive({first}) == set()
        await until(lambda: len(children(tmp_path)) == 2)
        stack.signal(signal.SIGTERM)

        assert await stack.end() == (0, "")
        assert alive(children(tmp_path)) == set()


async def test_a_killed_supervisor_takes_all_along_and_the_next_can_start(tmp_path: Path) -> None:
    async with stubs(tmp_path, behaviour={"web": ["--child"], "worker": ["--deaf"]}) as stack:
        await stack.ready()
        family = stack.family()

        stack.signal(signal.SIGKILL)
        await stack.end()

        async with stubs(tmp_path) as following:
            await following.ready()
            assert alive(family) == set()


async def test_the_directory_stays_taken_until_what_a_killed_supervisor_left_is_dead(tmp_path: Path) -> None:
    async with stubs(tmp_path) as stack:
        await stack.ready()
        guardian = stack.guardian()
        family = stack.family()

        os.kill(guardian, signal.SIGSTOP)
        stack.signal(signal.SIGKILL)
        async with stubs(tmp_path) as second:
            assert (await second.end())[0] == 2
        assert alive(family) == family
        os.kill(guardian, signal.SIGCONT)

        await until(lambda: not alive(family))
        async with stubs(tmp_path) as third:
            await third.ready()


async def test_a_second_supervisor_on_one_directory_is_refused(tmp_path: Path) -> None:
    async with stubs(tmp_path) as stack:
        await stack.ready()
        async with stubs(tmp_path) as second:
            code, said = await second.end()

        assert code == 2
        assert f"in use by another supervisor, pid {stack.pid}" in said
        stack.signal(signal.SIGTERM)
        assert await stack.end() == (0, "")


async def test_a_taken_port_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with stubs(tmp_path, port=port) as stack:
            code, said = await stack.end()

    assert code == 2
    assert f"port {port} for web can't be had: Address already in use" in said
    assert not (tmp_path / "logs").exists()


async def test_a_part_that_never_comes_up_ends_the_start_with_the_end_of_its_log(tmp_path: Path) -> None:
    async with stubs(tmp_path, behaviour={"worker-2": ["--dies"]}) as stack:
        line = await stack.line()
        code, said = await stack.end()

    assert (line, code) == ("", 1)
    assert "worker ended 5 times in a row, last with exit code 3" in said
    assert "no such setting: COLOUR" in said
    assert (tmp_path / "ended").read_text().split() == ["web", "worker", "sandbox", "temporal"]


async def test_a_part_that_is_not_up_in_time_ends_the_start(tmp_path: Path) -> None:
    async with stubs(tmp_path, behaviour={"temporal": ["--never-up"]}, start_s=1) as stack:
        code, said = await stack.end()

    assert code == 1
    assert "temporal wasn't up after 1 s" in said


async def test_a_part_without_its_program_ends_the_start(tmp_path: Path) -> None:
    async with stubs(tmp_path, argv="/nowhere/sandbox") as stack:
        code, said = await stack.end()

    assert code == 1
    assert "sandbox can't be started (No such file or directory)" in said


async def test_sigterm_while_it_starts_ends_it_without_a_line(tmp_path: Path) -> None:
    async with stubs(tmp_path, behaviour={"web": ["--never-up"]}) as stack:
        await until((tmp_path / "up" / "temporal").exists, within_s=20)
        family = stack.family()

        stack.signal(signal.SIGTERM)

        assert await stack.line() == ""
        assert (await stack.end())[0] == 0
        assert alive(family) == set()


async def test_a_long_log_is_put_aside_at_the_start(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "web.log").write_bytes(b"x" * (10 * 1024 * 1024 + 1))
    (logs / "sandbox.log").write_text("from before\n")
    async with stubs(tmp_path) as stack:
        await stack.ready()

    assert (logs / "web.log.1").stat().st_size > 10 * 1024 * 1024
    assert "stub_part.py web" in (logs / "web.log").read_text()
    assert (logs / "sandbox.log").read_text().startswith("from before\n--- ")
