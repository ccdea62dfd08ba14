"""``python -m tests.dev.stub_stack DIR SPEC``: the real supervisor over stubs, as the tests ask for them."""

import asyncio
import dataclasses
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import cast

from workers._parts import FileProbe, Limits, Part
from workers._stack import Addresses, Port, Stack, run_stack

ROOT = Path(__file__).resolve().parents[2]
STUB = Path(__file__).with_name("stub_part.py")


def stub(name: str, directory: Path, *behaviour: str, log: str | None = None) -> Part:
    """Return a part that runs ``stub_part.py``; ``behaviour`` are its flags."""
    up = directory / "up" / (log or name)
    return Part(
        name=name,
        argv=(sys.executable, "-I", "-S", str(STUB), name, str(directory), str(up), *behaviour),
        env={},
        probe=FileProbe(up),
        log=log or name,
    )


def build(directory: Path, spec: dict[str, object]) -> Stack:
    """Return a stack of stubs; ``spec`` has flags by part, and settings of the supervisor."""
    behaviour = cast("dict[str, list[str]]", spec.get("behaviour", {}))
    parts = [
        stub("temporal", directory, *behaviour.get("temporal", ())),
        stub("sandbox", directory, *behaviour.get("sandbox", ())),
        stub("worker", directory, *behaviour.get("worker", ())),
        stub("worker", directory, *behaviour.get("worker-2", ()), log="worker-2"),
        stub("web", directory, *behaviour.get("web", ())),
    ]
    grace = timedelta(seconds=float(str(spec.get("grace_s", 6))))
    parts = [dataclasses.replace(part, grace=grace) for part in parts]
    if "argv" in spec:
        parts[1] = dataclasses.replace(parts[1], argv=(str(spec["argv"]),))
    return Stack(
        parts=tuple(parts),
        ports=(Port("web", int(str(spec["port"]))),) if "port" in spec else (),
        addresses=Addresses(
            web="http://127.0.0.1:1", temporal="127.0.0.1:2", ui=None, sandbox="http://127.0.0.1:4"
        ),
        env={"TURNSAGA_ENV": "development"},
        data=directory,
        cwd=ROOT,
        limits=Limits(start=timedelta(seconds=float(str(spec.get("start_s", 30))))),
    )


if __name__ == "__main__":
    stack = build(Path(sys.argv[1]), json.loads(sys.argv[2]))
    sys.exit(asyncio.run(run_stack(stack, human=False)))
