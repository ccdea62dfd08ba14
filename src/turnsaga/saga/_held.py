"""Held effects inside a turn's workflow: what is waited for, and people's answers that come straight here.

What an effect is held for, and whether it is due, is the ledger's to say. A signal, an answer or a timer
only makes this code ask.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from turnsaga import names
from turnsaga.ledger import State
from turnsaga.models import (
    CallOutcome,
    Decided,
    Decision,
    DecisionRequest,
    DueRequest,
    EffectBrief,
    Nudge,
    TurnDecision,
    TurnStart,
)
from turnsaga.saga._ledger import book

__all__ = ["Held"]

# Where the ledger names no instant; none of today's reasons to hold is without one.
_GLANCE: Final = timedelta(minutes=1)
_WHY: Final = {
    "confirmation": "waiting for the user's answer",
    "delay": "held for its delay",
}


class Held:
    """The waits of one turn.

    ``remember`` is told what became of an effect, ``stopped`` tells that the turn is being ended, and
    ``fenced`` is called when the ledger says that it must be.
    """

    def __init__(
        self,
        start: TurnStart,
        *,
        remember: Callable[[EffectBrief], None],
        stopped: Callable[[], bool],
        fenced: Callable[[], None],
    ) -> None:
        self._start = start
        self._remember = remember
        self._stopped = stopped
        self._fenced = fenced
        self._nudged: set[str] = set()
        workflow.set_signal_handler(names.DECIDED, self._on_decided)
        workflow.set_update_handler(names.CONFIRM, self._on_confirm, validator=self._check)
        workflow.set_update_handler(names.REJECT, self._on_reject, validator=self._check)

    async def until_due(self, brief: EffectBrief, *, turn_ended: bool) -> EffectBrief:
        """Return an effect once nothing holds it, or once it is prepared no more, or the turn is ended."""
        while not self._stopped():
            if brief.held_for in _WHY:
                await self._wait(brief)
                if self._stopped():
                    break
            elif not (brief.held_for == "turn_end" and turn_ended):
                break
            request = DueRequest(
                tenant=self._start.tenant,
                turn=self._start.turn,
                effect=brief.effect,
                turn_ended=turn_ended,
            )
            answer = await book(names.DUE, request, CallOutcome)
            if answer.effect is not None:
                brief = answer.effect
                self._remember(brief)
            if answer.fenced:
                self._fenced()
            if brief.state is not State.PREPARED:
                break
        return brief

    async def _wait(self, brief: EffectBrief) -> None:
        limit = _GLANCE if brief.wait_ms is None else timedelta(milliseconds=max(1, brief.wait_ms))
        try:
            await workflow.wait_condition(
                lambda: self._stopped() or brief.effect in self._nudged,
                timeout=limit,
                timeout_summary=f"{_WHY.get(brief.held_for or '', 'held')}: {brief.summary}",
            )
        except TimeoutError:
            return
        self._nudged.discard(brief.effect)

    def _on_decided(self, payload: Any = None) -> None:  # noqa: ANN401  # any client's JSON: it is only a nudge
        try:
            nudge = Nudge.model_validate(payload if isinstance(payload, dict) else {})
        except ValueError:
            return
        if nudge.effect is not None:
            self._nudged.add(nudge.effect)

    def _check(self, payload: Any = None) -> None:  # noqa: ANN401  # as above: what doesn't fit is refused
        _read(payload)
        if self._stopped():
            raise ApplicationError(
                "the turn was stopped before this answer", type="turn_aborted", non_retryable=True
            )

    async def _on_confirm(self, payload: Any = None) -> Decided:  # noqa: ANN401  # read by _check
        return await self._decide(_read(payload), confirmed=True)

    async def _on_reject(self, payload: Any = None) -> Decided:  # noqa: ANN401  # read by _check
        return await self._decide(_read(payload), confirmed=False)

    async def _decide(self, request: DecisionRequest, *, confirmed: bool) -> Decided:
        decision = Decision(
            tenant=self._start.tenant,
            effect=request.effect,
            confirmed=confirmed,
            version=request.version,
            digest=request.digest,
            by=request.by,
            via="update",
        )
        answer = await book(names.DECIDE, TurnDecision(turn=self._start.turn, decision=decision), Decided)
        if answer.answer != "accepted":
            raise ApplicationError(
                f"the answer changed nothing: {answer.answer}", type=answer.answer, non_retryable=True
            )
        self._nudged.add(request.effect)
        return answer


def _read(payload: object) -> DecisionRequest:
    try:
        return DecisionRequest.model_validate(payload)
    except ValueError as error:
        raise ApplicationError(
            "an answer is an object with 'effect', 'version' (a whole number), 'digest' and maybe 'by'",
            type="InvalidRequest",
            non_retryable=True,
        ) from error
