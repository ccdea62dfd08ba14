"""How a process ends whose Temporal core logs through it."""

import subprocess
import sys

import pytest

ENDS = {
    "return 3": (3, ""),
    "return None": (0, ""),
    "sys.exit(4)": (4, ""),
    "sys.exit('no such thing')": (1, "no such thing\n"),
    "raise ValueError('broken')": (1, "ValueError: broken\n"),
}


@pytest.mark.parametrize("body", ENDS)
def test_process_leaves_with_the_code_of_its_end(body: str) -> None:
    code, last = ENDS[body]
    script = f"""
import atexit, sys
from turnsaga.logs import leave_after
atexit.register(print, "the interpreter was taken down")
def main():
    print("told")
    {body}
leave_after(main)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert ended.returncode == code
    assert ended.stdout == "told\n"
    assert ended.stderr.endswith(last)
