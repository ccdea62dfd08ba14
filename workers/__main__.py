"""``python -m workers run | dev | demo``."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from activities.settings import VendorSettings
from settings.reading import exit_code, read_settings
from turnsaga.errors import TurnSagaError
from turnsaga.logs import leave_after
from workers.run import run as run_worker
from workers.settings import WorkerSettings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run() -> None:
    """Run one worker, configured by the environment, until it is told to stop."""
    raise typer.Exit(exit_code("workers", _run, TurnSagaError))


@app.command()
def dev(
    port_base: Annotated[
        int | None,
        typer.Option(min=1024, max=65000, help="web on N, Temporal N+1, UI N+2, sandbox N+3, SMTP N+4"),
    ] = None,
    data: Annotated[Path, typer.Option(help="where the state lives; a second start goes on from it")] = Path(
        ".turnsaga"
    ),
    database: Annotated[str | None, typer.Option(help="SQLAlchemy URL in place of DATA/ledger.db")] = None,
    temporal: Annotated[str | None, typer.Option(help="address of an outside Temporal")] = None,
    workers: Annotated[int, typer.Option(min=1, max=16, help="how many worker processes")] = 1,
) -> None:
    """Run everything on loopback, each part a process of its own, until Ctrl-C."""
    from workers.dev import DevOptions, supervise  # noqa: PLC0415  # a worker's start shouldn't wait for it

    options = DevOptions(
        port_base=port_base, data=data, database=database, temporal=temporal, workers=workers
    )
    raise typer.Exit(asyncio.run(supervise(options)))


@app.command()
def demo(
    *,
    drop_response: Annotated[
        bool, typer.Option(help="PAY loses the answer to each charge after applying it")
    ] = False,
) -> None:
    """Tell the main job as a story; exit 0 only if ledger and truth agree."""
    from workers.demo import demo as run_demo  # noqa: PLC0415  # as above

    raise typer.Exit(asyncio.run(run_demo(drop_response=drop_response)))


def _run() -> int:
    settings, vendors = read_settings(WorkerSettings), read_settings(VendorSettings)
    return asyncio.run(run_worker(settings, vendors))


if __name__ == "__main__":
    leave_after(app)
