"""Walks the reference model and notes how each step reads in the library's words."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import effect_model as reference
from scenarios import BASE, CONFIGS

from tests.model.readings import CLAIMS, SETTLED, action_of, events_of, turn_events_of
from turnsaga.errors import IllegalTransition
from turnsaga.ledger import Event, State, TurnEventName, TurnState, advance, advance_turn
from turnsaga.settle import Action

__all__ = ["MODEL_CONFIGS", "Offer", "Seen", "Survey", "survey"]

STATES_PER_CONFIG: Final = None if os.environ.get("TURNSAGA_CAMPAIGN") else 16_000
"""How many states of each configuration are looked at; a campaign looks at all of them."""


class Attempt(Protocol):
    """One attempt of a commit or an undo, as the model has it."""

    pc: int
    token: int
    req: int
    seen: int
    run: int


class Effect(Protocol):
    """One effect, as the model has it."""

    prep: int
    st: int
    order: int
    owned: int
    commits: tuple[Attempt, ...]
    undos: tuple[Attempt, ...]
    looks: tuple[tuple[int, int], ...]
    ds: int
    visible: int
    window: int
    job: int
    forgot: int


class Turn(Protocol):
    """One turn, as the model has it."""

    st: int
    fence: int


class Run(Protocol):
    """One workflow run: a turn's own, or a recovery."""

    turn: int
    pc: int


class Control(Protocol):
    """All that a state of the model holds beside its effects."""

    turns: tuple[Turn, ...]
    runs: tuple[Run, ...]


class Config(Protocol):
    """What a configuration declares, one entry an effect."""

    repeat: tuple[str, ...]
    undo: tuple[str | None, ...]
    turn: tuple[int, ...]
    job: tuple[int, ...]
    attempts: int


T = TypeVar("T")
Snapshot = tuple[Any, ...]

MODEL_CONFIGS: Final[dict[str, Config]] = {
    **{name: config for name, config in CONFIGS.items() if not name.startswith("big")},
    # The listed configurations give jobs to keyed vendors only, which are never asked: none finds a job.
    "job, looked up": reference.Config(("lookup",), ("keyed",), job=(1,), faults=2, kinds=BASE | {"bound"}),
}


class Seen(NamedTuple):
    """What the plan is told of one effect, in the model's terms, and two ways of waiting in silence.

    ``waits_for_answer`` says that asking the vendor would teach nothing yet, so that the model has no
    step for it; ``waits_for_job`` that a job was asked to cancel and has not come to its end.
    """

    effect: int
    state: State | None
    order: int
    owned: bool
    commits: int
    undos: int
    forgot: bool
    on_wire: bool
    waits_for_answer: bool
    waits_for_job: bool


@dataclass(frozen=True)
class Offer:
    """What the model offers a settling run: actions on effects, and whether the turn may be closed."""

    actions: frozenset[tuple[Action, int]]
    settled: bool


@dataclass
class Survey:
    """What was met on a walk through one configuration."""

    config: Config
    states: int = 0
    moves: set[tuple[State | None, Event, State]] = field(default_factory=set)
    turn_moves: set[tuple[TurnState, TurnEventName, TurnState]] = field(default_factory=set)
    plans: dict[tuple[Seen, ...], set[Offer]] = field(default_factory=dict)
    disagreements: list[str] = field(default_factory=list)


@cache
def survey(name: str) -> Survey:
    """Walk one configuration, in an order that depends on its name alone.

    States are told apart by what the ledger shows and by where the runs are, and every such kind gets
    its turn as often as any other: a walk that is cut short has seen rare kinds as well as common ones.
    """
    config = MODEL_CONFIGS[name]
    model = reference.Model(config)
    found = Survey(config)
    random = Random(name)
    first: Snapshot = model.initial()
    met: set[Snapshot] = {first}
    frontier: dict[tuple[int, ...], list[Snapshot]] = {_kind(first): [first]}
    kinds = list(frontier)
    while kinds and (STATES_PER_CONFIG is None or found.states < STATES_PER_CONFIG):
        kind = _taken(kinds, random)
        state = _taken(frontier[kind], random)
        found.states += 1
        for label, after, _ in model.successors(state):
            _note_moves(found, label, state, after)
            if after not in met:
                met.add(after)
                other = _kind(after)
                waiting = frontier.setdefault(other, [])
                if not waiting and other != kind:
                    kinds.append(other)
                waiting.append(after)
        if frontier[kind]:
            kinds.append(kind)
        for run in _settling(config, state):
            _note_plan(found, model, state, run)
    return found


def _kind(state: Snapshot) -> tuple[int, ...]:
    runs = (run.pc for run in _control(state).runs)
    rows = (
        part
        for effect in _effects(state)
        for part in (
            effect.st,
            effect.order,
            effect.owned,
            len(effect.commits),
            len(effect.undos),
            effect.forgot,
        )
    )
    return (*runs, *rows)


def _taken(items: list[T], random: Random) -> T:
    chosen = random.randrange(len(items))
    items[chosen], items[-1] = items[-1], items[chosen]
    return items.pop()


def _note_moves(found: Survey, label: str, before: Snapshot, after: Snapshot) -> None:
    named = _named(label)
    for number, (old, new) in enumerate(zip(before[1:], after[1:], strict=True)):
        if old is new:
            continue
        if number in named:
            _note_move(found, label, old, new)
        elif old.st != new.st or _claimed(old, new):
            found.disagreements.append(f"{label!r} moves an effect that it doesn't name")
    for was, turn in zip(_control(before).turns, _control(after).turns, strict=True):
        if was is not turn:
            _note_turn_move(found, label, TURN_STATES[was.st], TURN_STATES[turn.st])


def _note_move(found: Survey, label: str, old: Effect, new: Effect) -> None:
    state = before = STATES[old.st]
    events = events_of(label, before)
    for event in events:
        try:
            after = advance(state, event)
        except IllegalTransition as error:
            found.disagreements.append(f"{label!r}: {error}")
            return
        found.moves.add((state, event, after))
        state = after
    if state is not STATES[new.st]:
        found.disagreements.append(
            f"{label!r}: {before} -> {STATES[new.st]} in the model, -> {state} by {events}"
        )
    if _claimed(old, new) != bool(CLAIMS & set(events[-1:])):
        found.disagreements.append(f"{label!r}: claimed in the model: {_claimed(old, new)}, here {events}")
    if new.owned > old.owned and not {Event.HANDED_OVER, Event.UNDO_FAILED} & set(events):
        found.disagreements.append(f"{label!r}: owned from now on in the model, but not by {events}")


def _note_turn_move(found: Survey, label: str, before: TurnState, expected: TurnState) -> None:
    state = before
    for event in turn_events_of(label, before):
        try:
            state = advance_turn(before, event)
        except IllegalTransition as error:
            found.disagreements.append(f"{label!r}: {error}")
            return
        found.turn_moves.add((before, event, state))
    if state is not expected:
        found.disagreements.append(f"{label!r}: {before} -> {expected} in the model, -> {state} here")


def _note_plan(found: Survey, model: Any, state: Snapshot, run: int) -> None:
    control, effects = _control(state), _effects(state)
    turn = control.runs[run].turn
    actions: set[tuple[Action, int]] = set()
    settled = False
    for label, after, _ in model.settle_steps(state, run):
        if after == state:
            continue
        try:
            read = action_of(label)
        except LookupError:
            found.disagreements.append(f"{label!r} is no action of the plan")
            continue
        if isinstance(read, str):
            settled |= read == SETTLED
        elif read[0] is not None:
            actions.add((read[0], read[1]))
    rows = tuple(
        _seen(found.config, number, effects[number])
        for number, owner in enumerate(found.config.turn)
        if owner == turn
    )
    found.plans.setdefault(rows, set()).add(Offer(frozenset(actions), settled))


def _settling(config: Config, state: Snapshot) -> Iterator[int]:
    """Yield the runs that settle a fenced turn and whose own calls have all ended."""
    control, effects = _control(state), _effects(state)
    for number, run in enumerate(control.runs):
        turn = control.turns[run.turn]
        if run.pc != reference.SETTLING or not turn.fence or turn.st == reference.COMPLETED:
            continue
        mine = [effect for effect, owner in zip(effects, config.turn, strict=True) if owner == run.turn]
        preparing = number < len(control.turns) and any(effect.prep == 1 for effect in mine)
        calling = any(
            attempt.run == number and attempt.seen < 2
            for effect in mine
            for attempt in effect.commits + effect.undos
        )
        if not preparing and not calling:
            yield number


def _seen(config: Config, number: int, effect: Effect) -> Seen:
    visible = bool((effect.ds or effect.job) and effect.visible)
    return Seen(
        effect=number,
        state=STATES[effect.st],
        order=effect.order,
        owned=bool(effect.owned),
        commits=len(effect.commits),
        undos=len(effect.undos),
        forgot=bool(effect.forgot),
        on_wire=any(
            attempt.req == reference.ON_WIRE or attempt.pc == reference.GATED for attempt in effect.commits
        ),
        waits_for_answer=effect.st == reference.UNKNOWN and not visible and not effect.window,
        waits_for_job=effect.st == reference.ACCEPTED and effect.job == reference.JOB_ASKED,
    )


def _claimed(old: Effect, new: Effect) -> bool:
    """Tell whether an attempt holds the row's token now that didn't before."""
    held = tuple(attempt.token for attempt in old.commits), tuple(attempt.token for attempt in old.undos)
    holds = tuple(attempt.token for attempt in new.commits), tuple(attempt.token for attempt in new.undos)
    return any(
        token and not (number < len(was) and was[number])
        for was, now in zip(held, holds, strict=True)
        for number, token in enumerate(now)
    )


@cache
def _named(label: str) -> frozenset[int]:
    return frozenset(int(number) for number in re.findall(r"\bE(\d)", label))


def _control(state: Snapshot) -> Control:
    return cast("Control", state[0])


def _effects(state: Snapshot) -> tuple[Effect, ...]:
    return cast("tuple[Effect, ...]", state[1:])


STATES: Final[tuple[State | None, ...]] = tuple(
    None if name == "-" else State(name) for name in reference.STATE
)
TURN_STATES: Final = {
    reference.RUNNING: TurnState.RUNNING,
    reference.ABORTING: TurnState.ABORTING,
    reference.COMPLETED: TurnState.COMPLETED,
    reference.ABORTED: TurnState.ABORTED,
}
