"""``turnsaga``, or ``python -m turnsaga.cli``."""

import sys
from importlib.util import find_spec
from typing import Final

__all__ = ["main"]

_NEEDS: Final = ("packaging", "rich", "typer")


def main() -> int:
    """Run the command; 2 if the parts that it needs aren't installed."""
    if any(find_spec(name) is None for name in _NEEDS):
        sys.stderr.write("turnsaga: the command needs its extra: pip install 'turnsaga[cli]'\n")
        return 2
    from turnsaga.cli._commands import command  # noqa: PLC0415  # what it imports may not be there

    command()
    return 0


if __name__ == "__main__":
    sys.exit(main())
