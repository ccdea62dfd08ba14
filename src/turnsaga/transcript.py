"""The ledger as sentences, and as the history that a model is given. Pure.

A history is built from the ledger each time; it is never patched. So every tool call of every reply has
exactly one result, in the reply's order, and each says what is true now: an effect that was undone since
is told as undone.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from turnsaga.ledger import State, TurnState
from turnsaga.models import EffectBrief, HeldFor

__all__ = [
    "PastCall",
    "PastStep",
    "PastTurn",
    "details_markdown",
    "details_row",
    "effect_result",
    "notice",
    "turn_note",
]


@dataclass(frozen=True)
class PastCall:
    """One tool call of a reply with its one result. ``arguments`` is the text that the model wrote."""

    call_id: str
    tool: str
    arguments: str
    result: str
    is_error: bool


@dataclass(frozen=True)
class PastStep:
    """One whole reply of the model."""

    text: str
    calls: tuple[PastCall, ...]


@dataclass(frozen=True)
class PastTurn:
    """One user message and what the model answered; a half-streamed reply isn't part of it."""

    message: str
    state: TurnState
    steps: tuple[PastStep, ...]


_RESULT: Final[dict[State, tuple[str, bool]]] = {
    State.PREPARED: ("not run yet", True),
    State.RELEASED: ("not run: it was not sent", True),
    State.COMMITTING: ("under way: its outcome is not known yet; do not repeat it", True),
    State.ACCEPTED: ("accepted by the system and still running; do not repeat it", False),
    State.COMMITTED: ("done", False),
    State.FAILED: ("not done", True),
    State.UNKNOWN: ("outcome unknown: it may have been done and is being checked; do not repeat it", True),
    State.COMPENSATING: ("done, and being undone since the turn was stopped", True),
    State.COMPENSATED: ("done, then undone since the turn was stopped", True),
    State.COMPENSATION_FAILED: (
        "done; undoing it failed and a person is looking at it; do not repeat it",
        True,
    ),
    State.STANDING: ("done; it stands although the turn was stopped", False),
}


# Nobody knows whether it was done; it was undone all the same, so that it doesn't stand.
_UNASKED: Final[dict[State, str]] = {
    State.COMPENSATING: "outcome not known: it may have been done, and is being undone; do not repeat it",
    State.COMPENSATED: "not done: its outcome got lost, so it was undone at once",
    State.COMPENSATION_FAILED: (
        "outcome not known: it may have been done, undoing it failed, and a person is looking at it; "
        "do not repeat it"
    ),
}


_HELD_RESULT: Final[dict[HeldFor, str]] = {
    "confirmation": "prepared and not done: the user is being asked",
    "turn_end": "prepared and not done yet: it takes effect when this turn ends, unless the user stops it",
    "delay": "prepared and not done yet: it takes effect in a moment, unless the user stops it",
    "viewer": "prepared and not done yet: it waits until the user is back",
}


def effect_result(
    state: State,
    *,
    result: str | None,
    error: str | None,
    repeated: bool,
    title: str,
    key: str,
    held_for: HeldFor | None = None,
    unasked: bool = False,
) -> tuple[str, bool]:
    """Return what the model is told of an effect, and whether that is an error.

    ``unasked`` says that it was undone although nobody knows whether it was done. ``repeated`` marks the
    answer to a call that repeats an earlier one of the same turn: nothing was run a second time.
    """
    words, is_error = _RESULT[state]
    if unasked and state in _UNASKED:
        words = _UNASKED[state]
    if state is State.PREPARED and held_for in _HELD_RESULT:
        # With the preview, so that the model can tell the user what is going to happen.
        words, is_error = f"{_HELD_RESULT[held_for]}: {title}", False
    if state is State.COMMITTED and result is not None:
        words = result
    elif error:
        words = f"{words} ({error})"
    if state in {State.UNKNOWN, State.COMPENSATION_FAILED}:
        words = f"{title}: {words} [key {key}]"
    if repeated:
        words = (
            f"(this repeats an earlier call of this turn, whose result it is; nothing was run again) {words}"
        )
    return words, is_error


def turn_note(state: TurnState) -> str | None:
    """Return what a later turn's model is told about how an earlier one ended, if not as usual."""
    if state in {TurnState.ABORTED, TurnState.ABORTING}:
        return "(The user stopped this turn. The results above say what became of each call.)"
    if state in {TurnState.FAILED, TurnState.FAILING}:
        return "(This turn failed. The results above say what became of each call.)"
    return None


_NOTICE: Final[dict[State, str]] = {
    State.STANDING: "was done in a turn that was stopped, and stands",
    State.UNKNOWN: "may or may not have been done; it is being checked",
    State.ACCEPTED: "was accepted and may still finish",
    State.COMPENSATION_FAILED: "was done and could not be undone; a person is needed",
}


def notice(title: str, state: State, reason: str | None) -> str:
    """Return one sentence about an effect of an earlier turn that its user hasn't acknowledged."""
    words = f"{title}: {_NOTICE[state]}"
    return f"{words} ({reason})" if reason else words


def details_markdown(headline: str, rows: Collection[str]) -> str:
    """Return the ledger of a turn as a markdown table of ``details_row``s, for the Temporal UI."""
    if not rows:
        return headline
    return "\n".join(
        [headline, "", "| # | tool | effect | state | note |", "| --- | --- | --- | --- | --- |", *rows]
    )


def details_row(brief: EffectBrief) -> str:
    """Return one effect as a row of the table."""
    summary, why = _cell(brief.summary), _cell(brief.note or "")
    return f"| {brief.order or ''} | `{brief.tool}` | {summary} | **{brief.state}** | {why} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
