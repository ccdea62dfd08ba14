"""The end that every door must lead to, whatever ended a turn's run: one oracle for all of them."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.stack import SandboxProcess, Turns, say
from turnsaga.ledger import State, TurnState
from turnsaga.models import EffectView, StepRef, TurnEvent, TurnView
from turnsaga.store import Started, StepContext
from turnsaga.testing import FakeSystem, Truth

__all__ = ["must_be_whole", "truth_of"]

# What a later turn's model is told of an effect, in words that no other state's result has.
_SAID: Final = {
    "not run": State.RELEASED,
    "not done": State.FAILED,
    "outcome unknown": State.UNKNOWN,
    "then undone": State.COMPENSATED,
    "undoing it failed": State.COMPENSATION_FAILED,
    "it stands": State.STANDING,
}
_NEVER_PREPARED: Final = "not run: the turn was stopped before this call"
_TOLD: Final = frozenset({State.STANDING, State.UNKNOWN, State.ACCEPTED, State.COMPENSATION_FAILED})
# Notices have a bound; a ledger that several tests share may have more to tell.
_MOST_NOTICES: Final = 50


async def truth_of(vendors: SandboxProcess | FakeSystem) -> Truth:
    """Return what really happened."""
    if isinstance(vendors, FakeSystem):
        return vendors.truth()
    return Truth.model_validate(await vendors.truth())


async def must_be_whole(
    turns: Turns, vendors: SandboxProcess | FakeSystem, started: Started, *, within: float = 40
) -> TurnView:
    """Fail unless the turn ends whole, and return it.

    What stands downstream is what the ledger says; no effect rests in between, or is open and nobody's;
    what its user and the next turn's model are told agrees with the ledger; that next turn, of the same
    conversation, runs; and the sweeper has nothing more to do. The turn is the conversation's last.
    """
    view = await turns.settled(started, within=within)
    _none(_rests(view))
    await turns.must_agree(await truth_of(vendors), started)
    _none(_untold(view, await turns.events(started)))

    following = await turns.start(say("{{context}}"), conversation=started.conversation)
    after = await turns.settled(following, within=within)
    context = await turns.store.step_context(
        StepRef(tenant=following.ref.tenant, turn=following.ref.turn, step=1)
    )
    told = [event.data["text"] for event in await turns.events(following) if event.kind == "text_delta"]
    if after.state is not TurnState.COMPLETED:
        _none([f"the next turn is {after.state} ({after.reason})"])
    _none(_mistold(view, context, "".join(told)))

    if not any(effect.state in {State.UNKNOWN, State.ACCEPTED} for effect in view.effects):
        left = await turns.store.turns_to_sweep(before=datetime.now(UTC) + timedelta(days=1), limit=1000)
        _none(["the sweeper isn't done with it" for turn in left if turn.start.turn == started.ref.turn])
    return view


def _none(found: list[str]) -> None:
    # With a message of its own: asserts outside of test files aren't explained.
    assert not found, "; ".join(found)


def _rests(view: TurnView) -> list[str]:
    """Return a sentence for each effect that an ended turn must not have, and for a wrong settlement."""
    found = [why for effect in view.effects if (why := _unrest(effect, view.state)) is not None]
    assert view.settlement is not None
    listed = {
        effect: state
        for state, effects in view.settlement.model_dump(exclude={"at"}).items()
        for effect in effects
    }
    if listed != {effect.effect: effect.state.value for effect in view.effects}:
        found.append(f"the settlement isn't that of the effects: {listed}")
    return found


def _unrest(effect: EffectView, turn: TurnState) -> str | None:
    if effect.state in {State.PREPARED, State.COMMITTING, State.COMPENSATING}:
        return f"{effect.title} rests {effect.state}"
    if effect.state in {State.UNKNOWN, State.ACCEPTED} and not effect.needs_attention:
        return f"{effect.title} is {effect.state}, and nobody's"
    if effect.state is State.COMMITTED and turn is not TurnState.COMPLETED:
        return f"{effect.title} is committed in a turn that is {turn}"
    return None


def _untold(view: TurnView, events: list[TurnEvent]) -> list[str]:
    """Return a sentence for each thing in which the turn's events end otherwise than the turn."""
    last = {event.data["effect"]: event.data["state"] for event in events if event.kind.startswith("tool_")}
    found = [
        f"{effect.title} is {effect.state}, and its last event says {last.get(effect.effect)}"
        for effect in view.effects
        if last.get(effect.effect) != effect.state
    ]
    ends = [event.data for event in events if event.kind == "turn_settled"]
    if [(end["state"], end["reason"]) for end in ends] != [(view.state, view.reason)]:
        found.append(f"the turn is {view.state} ({view.reason}), and its events end with {ends}")
    return found


def _mistold(view: TurnView, context: StepContext, text: str) -> list[str]:
    """Return a sentence for each thing that the next turn, or its user, is told wrongly of this one."""
    before = context.history[-2]
    results = [(call.tool, call.result) for step in before.steps for call in step.calls]
    said = Counter((tool, _said(result)) for tool, result in results if result != _NEVER_PREPARED)
    true = Counter((effect.tool, effect.state) for effect in view.effects)
    found = [] if said == true else [f"its model is told {said}, and the effects are {true}"]
    if before.state is not view.state:
        found.append(f"its model is told that the turn is {before.state}")
    for effect in view.effects:
        notices = [notice for notice in context.notices if notice.startswith(f"{effect.title}: ")]
        if len(context.notices) < _MOST_NOTICES and len(notices) != (effect.state in _TOLD):
            found.append(f"{effect.title} is {effect.state}, and {notices} is said of it")
        found += [f"{notice!r} isn't in its text" for notice in notices if notice not in text]
    return found


def _said(result: str) -> State:
    return next((state for words, state in _SAID.items() if words in result), State.COMMITTED)
