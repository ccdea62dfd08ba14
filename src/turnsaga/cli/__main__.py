"""``turnsaga``, or ``python -m turnsaga.cli``."""

import sys
from importlib.util import find_spec
from typing import Final, NoReturn

__all__ = ["main"]

_NEEDS: Final = ("packaging", "rich", "typer")


def main() -> NoReturn:
    """Run the command; 2 if the parts that it needs aren't installed."""
    if any(find_spec(name) is None for name in _NEEDS):
        sys.stderr.write("turnsaga: the command needs its extra: pip install 'turnsaga[cli]'\n")
        sys.exit(2)
    from turnsaga.cli._commands import command  # noqa: PLC0415  # what it imports may not be there
    from turnsaga.logs import leave_after  # noqa: PLC0415  # as above

    leave_after(command)


if __name__ == "__main__":
    main()
