"""``python -m sandbox``: the sandbox as a process, configured by the environment."""

import asyncio
import json
import logging
import signal
import sys

from sandbox.errors import CannotStart
from sandbox.server import serve
from sandbox.settings import SandboxSettings
from settings.reading import exit_code, read_settings


async def run(settings: SandboxSettings) -> None:
    """Serve until SIGTERM or SIGINT, after one JSON line that says where."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with serve(settings) as serving:
        ready = {"ready": True, "http": serving.url, "smtp": f"{serving.host}:{serving.smtp_port}"}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        await ended.wait()


def main() -> int:
    """Return the exit code: 2 if the settings can't be used."""
    logging.basicConfig(level=logging.WARNING)
    return exit_code("sandbox", _run, CannotStart)


def _run() -> int:
    asyncio.run(run(read_settings(SandboxSettings)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
