"""Stands in for a part: touches a file when it is up, notes its end, and misbehaves as asked.

Imports the standard library alone, since every test starts five of it.
"""

import argparse
import signal
import subprocess
import sys
from pathlib import Path


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
