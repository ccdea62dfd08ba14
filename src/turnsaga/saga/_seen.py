"""What is seen of a turn in the Temporal UI, by its search attributes and by the query ``ledger``."""

from collections.abc import Sequence
from typing import Any, Final

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from turnsaga import names
from turnsaga.ledger import IN_DOUBT, OPEN_TURN, State, TurnState
from turnsaga.models import EffectBrief, NextSteps, TurnStart
from turnsaga.transcript import details_markdown, details_row

__all__ = ["Seen"]

_TURN_STATUS: Final = SearchAttributeKey.for_keyword(names.TURN_STATUS)
_NEEDS_ATTENTION: Final = SearchAttributeKey.for_bool(names.NEEDS_ATTENTION)


class Seen:
    """A turn's state and its effects as the ledger last told them: for people, never to decide by."""

    def __init__(self, start: TurnStart) -> None:
        self._turn = start.turn
        self.status = TurnState.QUEUED if start.queued else TurnState.RUNNING
        self._briefs: dict[str, EffectBrief] = {}
        self._rows: dict[str, str] = {}
        self._attention = False
        workflow.set_query_handler(names.LEDGER, self._on_ledger)

    def brief(self, effect: str) -> EffectBrief | None:
        """Return what was last told of an effect."""
        return self._briefs.get(effect)

    def first_undo(self, told: NextSteps | None) -> NextSteps | None:
        """Return what came with an abort if it is one undo of an effect of ours: anybody may send any."""
        if told is None or told.settled or [step.action for step in told.steps] != ["undo"]:
            return None
        return told if told.steps[0].effect in self._briefs else None

    def note(self, brief: EffectBrief) -> None:
        """Show what became of one effect."""
        self.remember((brief,), self.status)

    def remember(self, briefs: Sequence[EffectBrief], state: TurnState) -> None:
        """Show what the ledger tells of effects and of the turn."""
        self._briefs.update({brief.effect: brief for brief in briefs})
        # Kept as they are written: a turn of a thousand effects would write them all a thousand times.
        self._rows.update({brief.effect: details_row(brief) for brief in briefs})
        if state is not self.status:
            self.status = state
            if state not in OPEN_TURN:
                self.index(state)
        self.show(f"turn {self.status}")

    def index(self, state: TurnState) -> None:
        """Change what the turn is found by; one command, since each is an event and a write to the index."""
        attention = any(
            brief.state in IN_DOUBT or brief.state is State.COMPENSATION_FAILED
            for brief in self._briefs.values()
        )
        changes: list[SearchAttributeUpdate[Any]] = [_TURN_STATUS.value_set(state.value)]
        if attention is not self._attention:
            self._attention = attention
            changes.append(_NEEDS_ATTENTION.value_set(attention))
        workflow.upsert_search_attributes(changes)

    def show(self, headline: str) -> None:
        """Show the ledger as a table under a headline."""
        workflow.set_current_details(details_markdown(headline, self._rows.values()))

    def _on_ledger(self) -> dict[str, Any]:
        return {
            "turn": self._turn,
            "state": self.status.value,
            "effects": [brief.model_dump(mode="json") for brief in self._briefs.values()],
        }
