"""A turn's place in its conversation: it waits for the earlier ones, and lets the next one begin."""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import FailureError

from turnsaga import names
from turnsaga.ledger import TurnState
from turnsaga.models import Entered, TurnStart
from turnsaga.saga._ledger import book

__all__ = ["Place"]

_FIRST_PAUSE: Final = timedelta(seconds=1)
_LONGEST_PAUSE: Final = timedelta(seconds=30)


class Place:
    """Waits and tells. Whether a turn may begin is the ledger's to say; ``stopped`` ends the wait."""

    def __init__(self, start: TurnStart, *, stopped: Callable[[], bool]) -> None:
        self._start = start
        self._stopped = stopped
        self._may_proceed = False
        workflow.set_signal_handler(names.PROCEED, self._on_proceed)

    async def taken(self, *, within: timedelta) -> TurnState:
        """Return where the turn stands once it waits no more; still queued if it was stopped or time is over.

        Whoever ends an earlier turn lets the next begin and says so; a signal that is lost is made up for
        by asking.
        """
        give_up, pause = workflow.now() + within, _FIRST_PAUSE
        while True:
            entered = await book(names.ENTER, self._start.ref, Entered)
            if entered.state is not TurnState.QUEUED or self._stopped() or workflow.now() >= give_up:
                return entered.state
            try:
                await workflow.wait_condition(
                    lambda: self._stopped() or self._may_proceed,
                    timeout=pause,
                    timeout_summary="waiting for the conversation's earlier turn",
                )
            except TimeoutError:
                pause = min(2 * pause, _LONGEST_PAUSE)
            self._may_proceed = False

    async def tell_next(self, turn: str | None) -> None:
        """Tell the conversation's next turn that it may begin; it asks by itself if it isn't told."""
        if turn is not None:
            with contextlib.suppress(FailureError):
                await workflow.get_external_workflow_handle(turn).signal(names.PROCEED)

    def _on_proceed(self) -> None:
        self._may_proceed = True
