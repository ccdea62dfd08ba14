"""Activities that only read and write the ledger; workflows run them as local activities."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from turnsaga import names
from turnsaga.errors import STORE_UNAVAILABLE, IllegalTransition, NotFound, StoreUnavailable
from turnsaga.models import (
    CallOutcome,
    CallRef,
    Decided,
    DueRequest,
    EffectRef,
    Entered,
    FenceAnswer,
    FenceRequest,
    HandOver,
    NextSteps,
    SettleRequest,
    TurnDecision,
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
            self.enter,
            self.due,
            self.decide,
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
    async def undecided(self, ref: CallRef) -> NextSteps:
        """Say what has to be done about a call's effect that nothing works on any more."""
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

    @activity.defn(name=names.ENTER)
    async def enter(self, ref: TurnRef) -> Entered:
        """Let a queued turn begin if it is next and its conversation is free."""
        return Entered(state=await _asked(self._store.enter_turn(ref)))

    @activity.defn(name=names.DUE)
    async def due(self, request: DueRequest) -> CallOutcome:
        """Let a held effect go on if its wait is over."""
        ref = EffectRef(tenant=request.tenant, turn=request.turn, effect=request.effect)
        row, fenced = await _asked(self._store.due(ref, turn_ended=request.turn_ended))
        return CallOutcome(effect=brief(row, now=datetime.now(UTC)), fenced=fenced)

    @activity.defn(name=names.DECIDE)
    async def decide(self, request: TurnDecision) -> Decided:
        """Take an answer that came straight to the workflow."""
        try:
            taken = await _asked(self._store.decide(request.decision, turn=request.turn))
        except ApplicationError as error:
            if error.type != NotFound.__name__:
                raise
            return Decided(answer="not_found")
        return Decided(answer=taken.answer, first=taken.first, effect=brief(taken.row, now=datetime.now(UTC)))


async def _asked(question: Awaitable[T]) -> T:
    """Give the ledger's errors the names under which they cross Temporal."""
    try:
        return await question
    except StoreUnavailable as error:
        raise ApplicationError(str(error), type=STORE_UNAVAILABLE) from None
    except (NotFound, IllegalTransition) as error:
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None
