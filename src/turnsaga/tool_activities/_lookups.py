"""``<tool>.lookup``: ask what became of a call whose answer was lost."""

from typing import Any

from temporalio.exceptions import ApplicationError

from turnsaga.attempts import started, untorn
from turnsaga.errors import OUTCOME_UNKNOWN
from turnsaga.ledger import State
from turnsaga.models import EffectRef, Resolution
from turnsaga.store import CommitOutcome, SqlStore, brief, load_object
from turnsaga.tool_activities._common import EXPECTED, call_for, now, speak_of, until
from turnsaga.tools import EffectTool, Found, Missing, Running

__all__ = ["LookupAttempts"]


class LookupAttempts:
    """Attempts to find out."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def run(self, tool: EffectTool[Any], ref: EffectRef) -> Resolution:
        """Take the claim away from whoever holds it, ask, and write the answer.

        Raises:
            ApplicationError: nothing is decided yet; it is asked again.
        """
        row = await self._store.begin_lookup(ref)
        speak_of(row, row.key)
        if row.state is not State.UNKNOWN or tool.lookup is None:
            return Resolution(effect=brief(row), decided=row.state is not State.UNKNOWN)
        asked_at = now()
        try:
            answer: object = await untorn(
                started(tool.lookup, load_object(row.request), call_for(row, row.key, tool.limits.call)),
                within=tool.limits.call,
            )
        except Exception as error:  # noqa: BLE001  # a tool's own code may raise anything
            raise ApplicationError(
                f"{row.summary}: can't be asked about now ({type(error).__name__}); it is asked again",
                type=OUTCOME_UNKNOWN,
                category=EXPECTED,
            ) from None
        match answer:
            case Found(receipt=receipt, result=result):
                found = CommitOutcome(applied=True, receipt=receipt, result=result)
                row = await self._store.record_lookup(ref, row.token, found, asked_at=asked_at)
            case Missing():
                row = await self._store.record_lookup(ref, row.token, None, asked_at=asked_at)
            case Running():
                pass
            case _:
                # Nothing of it can be believed, and none of it is for a workflow's history.
                raise ApplicationError(
                    f"{row.summary}: can't be asked about now (its look-up gave no answer that there is)",
                    type=OUTCOME_UNKNOWN,
                    category=EXPECTED,
                )
        if row.state is State.UNKNOWN:
            raise ApplicationError(
                f"{row.summary}: not found yet, and may still take effect; it is asked again",
                type=OUTCOME_UNKNOWN,
                category=EXPECTED,
                next_retry_delay=until(row.wire_until),
            )
        return Resolution(effect=brief(row), decided=True)
