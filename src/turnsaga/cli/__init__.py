"""The command ``turnsaga``: an operator's tool over a deployment's ledger and its Temporal.

It needs the extra ``cli``. This module imports nothing, so that ``turnsaga.cli.__main__`` can say so.
"""

__all__: list[str] = []
