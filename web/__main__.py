"""``python -m web``: one web tier, configured by the environment, until it is told to stop."""

import asyncio
import sys

from pydantic import ValidationError

from turnsaga.errors import TurnSagaError
from turnsaga.logs import configure
from web.serving import serve
from web.settings import WebSettings

__all__ = ["main"]


def main() -> int:
    """Serve; 0 once it was told to stop, 2 with one line on stderr if it can't be started."""
    try:
        settings = WebSettings()
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return _refuse(f"TURNSAGA_{str(first['loc'][0]).upper()}: {first['msg']}")
    configure(settings.env)
    try:
        asyncio.run(serve(settings))
    except TurnSagaError as error:
        return _refuse(str(error))
    return 0


def _refuse(reason: str) -> int:
    sys.stderr.write(f"web: {reason}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
