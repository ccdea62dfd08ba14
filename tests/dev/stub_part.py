"""Stands in for a part: touches a file when it is up, notes its end, and misbehaves as asked."""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from workers._parts import FileProbe, Part, Probe


def stub(
    name: str, directory: Path, *behaviour: str, probe: Probe | None = None, log: str | None = None
) -> Part:
    """Return a part that runs this module; ``behaviour`` are its flags."""
    up = directory / "up" / (log or name)
    return Part(
        name=name,
        argv=(sys.executable, "-m", "tests.dev.stub_part", name, str(directory), str(up), *behaviour),
        env={},
        probe=probe or FileProbe(up),
        log=log or name,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("directory", type=Path)
    parser.add_argument("up", type=Path)
    parser.add_argument("--deaf", action="store_true", help="hears SIGTERM and stays")
    parser.add_argument("--dies", action="store_true", help="ends before it is up")
    parser.add_argument("--never-up", action="store_true")
    parser.add_argument("--child", action="store_true", help="starts a process of its own, and forgets it")
    asked = parser.parse_args()
    if asked.dies:
        sys.stderr.write("no such setting: COLOUR\n")
        sys.exit(3)
    if asked.child:
        child = subprocess.Popen(["sleep", "600"])
        with (asked.directory / "children").open("a") as children:
            children.write(f"{child.pid}\n")

    def end(_number: int, _frame: object) -> None:
        with (asked.directory / "ended").open("a") as ended:
            ended.write(f"{asked.name}\n")
        if not asked.deaf:
            sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    if not asked.never_up:
        asked.up.touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
