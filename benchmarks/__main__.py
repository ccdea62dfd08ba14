"""``python -m benchmarks``: JSON lines on stdout; ``table`` makes the page in docs of them."""

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.compare import compare as compare_sides
from benchmarks.crashes.matrix import crash_matrix
from benchmarks.crashes.on_dbos import dbos_version
from benchmarks.crashes.rig import SIDES as CRASH_SIDES
from benchmarks.crashes.rig import crash_rig
from benchmarks.growth import with_effects, with_ledger, with_turns
from benchmarks.leaks.matrix import leak_matrix
from benchmarks.leaks.rig import leak_rig
from benchmarks.rig import SIDES, Rig, rig, temporal_server
from benchmarks.shared import shared as shared_records
from benchmarks.table import write_tables
from tests.stack import sandbox_process
from turnsaga.logs import configure

Lines = list[dict[str, Any]]
_LEDGERS: Final = ("sqlite", "postgres")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def compare(
    at_once: Annotated[str, typer.Option(help="numbers of turns at once")] = "1,16",
    turns: Annotated[int, typer.Option(help="turns a side and round")] = 48,
    rounds: int = 4,
    sides: str = ",".join(SIDES),
) -> None:
    """The same turns as a bare Temporal saga and as turnsaga turns, alternating."""
    chosen = tuple(sides.split(","))

    async def run(running: Rig) -> None:
        for number in _numbers(at_once):
            _tell(await compare_sides(running, chosen, at_once=number, turns=turns, rounds=rounds))

    _with_rig(run, chosen)


@app.command()
def effects(counts: str = "1,10,100,1000", sides: str = "bare,sqlite,postgres") -> None:
    """More and more effects in one turn."""
    _grow(with_effects, counts, sides)


@app.command()
def turns(counts: str = "1,16,64,256", sides: str = "bare,sqlite,postgres") -> None:
    """More and more turns at once."""
    _grow(with_turns, counts, sides)


@app.command()
def ledger(counts: str = "10000,100000,1000000", sides: str = ",".join(_LEDGERS)) -> None:
    """A larger and larger ledger."""
    _grow(with_ledger, counts, sides)


@app.command()
def leaks(turns: Annotated[int, typer.Option(help="turns a side and ending")] = 100) -> None:
    """Mails that go out although their turn ends otherwise, counted in the mailbox."""
    configure("production")

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="turnsaga-leaks-") as name:
            folder = Path(name)
            async with (
                temporal_server(folder) as client,
                sandbox_process(folder) as sandbox,
                leak_rig(folder, client, sandbox) as running,
            ):
                _tell(await leak_matrix(running, turns=turns))

    asyncio.run(run())


@app.command()
def crashes(repeat: Annotated[int, typer.Option(help="runs a cell and side")] = 3) -> None:
    """Workers killed and runs stopped with a commit or an undo in flight, on three engines side by side."""
    configure("production")
    sides = [side for side in CRASH_SIDES if dbos_version() or not side.startswith("dbos")]
    if len(sides) < len(CRASH_SIDES):
        print("dbos isn't installed, and is left out; the extra 'compare' brings it", file=sys.stderr)

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="turnsaga-crashes-") as name:
            folder = Path(name)
            async with (
                temporal_server(folder) as client,
                sandbox_process(folder) as sandbox,
                crash_rig(folder, client, sandbox, sides) as running,
            ):
                async for lines in crash_matrix(running, repeat=repeat):
                    _tell(lines)

    asyncio.run(run())


@app.command()
def shared(
    waves: Annotated[int, typer.Option(help="times that 16 turns run at once, a kind and round")] = 4,
    rounds: int = 4,
    sides: str = ",".join(_LEDGERS),
) -> None:
    """Sixteen turns at once on four records, beside the same turns on records of their own."""
    chosen = tuple(sides.split(","))

    async def run(running: Rig) -> None:
        for side in chosen:
            _tell(await shared_records(running, side, waves=waves, rounds=rounds))

    _with_rig(run, chosen)


@app.command()
def table(lines: Annotated[Path, typer.Argument(help="what the other commands printed")]) -> None:
    """Put these figures into docs/benchmarks.md."""
    write_tables([json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()])


def _grow(measure: Callable[[Rig, str, list[int]], Awaitable[Lines]], counts: str, sides: str) -> None:
    chosen = tuple(sides.split(","))

    async def run(running: Rig) -> None:
        for side in chosen:
            _tell(await measure(running, side, _numbers(counts)))

    _with_rig(run, chosen)


def _with_rig(run: Callable[[Rig], Awaitable[None]], sides: tuple[str, ...]) -> None:
    configure("production")  # to stderr: stdout is for the lines

    async def started() -> None:
        with tempfile.TemporaryDirectory(prefix="turnsaga-bench-") as folder:
            async with rig(Path(folder), sides=sides) as running:
                await run(running)

    asyncio.run(started())


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _tell(lines: Lines) -> None:
    for line in lines:
        sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
