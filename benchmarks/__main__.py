"""``python -m benchmarks``."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.compare import compare
from benchmarks.rig import SIDES, rig

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def benchmarks() -> None:
    """Measure turnsaga."""


@app.command(name="compare")
def compare_command(
    at_once: Annotated[list[int], typer.Option()] = [1, 16],  # noqa: B006  # typer copies it
    turns: int = 48,
    rounds: int = 3,
    sides: Annotated[list[str], typer.Option()] = list(SIDES),  # noqa: B008  # as above
) -> None:
    """The same turns as a bare Temporal saga and as turnsaga turns, alternating."""

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with rig(Path(folder), sides=tuple(sides)) as running:
                for number in at_once:
                    _tell(await compare(running, sides, at_once=number, turns=turns, rounds=rounds))

    asyncio.run(run())


def _tell(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
