"""Runs the installed command as an operator does."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from pathlib import Path

from tests.stack import REPOSITORY

TURNSAGA = Path(sys.executable).parent / "turnsaga"


async def run(*arguments: str, env: Mapping[str, str], cwd: Path = REPOSITORY) -> tuple[int, str, str]:
    """Return the command's exit code, and what it wrote to stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        str(TURNSAGA), *arguments, env=dict(env), cwd=cwd, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
