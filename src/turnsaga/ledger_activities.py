"""Activities that only read and write the ledger; workflows run them as local activities."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnsaga import names
from turnsaga.errors import STORE_UNAVAILABLE, IllegalTransition, NotFound, StoreUnavailable
from turnsaga.models import (
    CallOutcome,
    EffectRef,
    FenceAnswer,
    FenceRequest,
    HandOver,
    NextSteps,
    SettleRequest,
    TurnRef,
)
from turnsaga.store import SqlStore, brief

__all__ = ["LedgerActivities"]

T = TypeVar("T")


class LedgerActivities:
    """The turn's bookkeeping."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def all(self) -> Sequence[Callable[..., object]]:
        """Return the activities, for a worker."""
        return [
            self.fence,
            self.complete,
            self.undecided,
            self.settle,
            self.owned,
            self.hand_over,
        ]

    @activity.defn(name=names.FENCE)
    async def fence(self, request: FenceRequest) -> FenceAnswer:
        """Write the fence, if nobody has."""
        return await _asked(self._store.fence(request))

    @activity.defn(name=names.COMPLETE)
    async def complete(self, ref: TurnRef) -> NextSteps:
        """Complete the turn, unless it is fenced or has effects in doubt."""
        return await _asked(self._store.complete_turn(ref))

    @activity.defn(name=names.UNDECIDED)
    async def undecided(self, ref: TurnRef) -> NextSteps:
        """Say what has to be done about effects that no call works on any more."""
        return await _asked(self._store.undecided(ref))

    @activity.defn(name=names.SETTLE)
    async def settle(self, request: SettleRequest) -> NextSteps:
        """Fence the turn if asked to, settle what needs no call, and say what does."""
        ref = TurnRef(tenant=request.tenant, turn=request.turn)
        return await _asked(self._store.next_steps(ref, given_up=request.given_up, fence=request.fence))

    @activity.defn(name=names.OWNED)
    async def owned(self, ref: TurnRef) -> NextSteps:
        """Say which effects that were handed over can be asked about again."""
        return await _asked(self._store.owned_steps(ref))

    @activity.defn(name=names.HAND_OVER)
    async def hand_over(self, request: HandOver) -> CallOutcome:
        """Show an effect in doubt as open."""
        ref = EffectRef(tenant=request.tenant, turn=request.turn, effect=request.effect)
        return CallOutcome(effect=brief(await _asked(self._store.hand_over(ref, request.reason))))


async def _asked(question: Awaitable[T]) -> T:
    """Give the ledger's errors the names under which they cross Temporal."""
    try:
        return await question
    except StoreUnavailable as error:
        raise ApplicationError(str(error), type=STORE_UNAVAILABLE) from None
    except (NotFound, IllegalTransition) as error:
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
