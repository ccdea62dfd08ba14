"""``python -m web``: one web tier, configured by the environment, until it is told to stop."""

import asyncio

from settings.reading import exit_code, read_settings
from turnsaga.errors import TurnSagaError
from turnsaga.logs import configure, forward_engine_logs, leave_after
from web.serving import serve
from web.settings import WebSettings

__all__ = ["main"]


def main() -> int:
    """Serve; 0 once it was told to stop, 2 with one line on stderr if it can't be started."""
    return exit_code("web", _run, TurnSagaError)


def _run() -> int:
    settings = read_settings(WebSettings)
    configure(settings.env)
    forward_engine_logs(settings.env)
    asyncio.run(serve(settings))
    return 0


if __name__ == "__main__":
    leave_after(main)
