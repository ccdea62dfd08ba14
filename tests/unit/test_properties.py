"""Tries to break what the contract calls always true, on the pure core and a saga in memory.

Every rule below is one thing that a worker, the network, a vendor, the engine or a user may do at any
moment. Hypothesis looks for an order of them that ends in an effect that the ledger doesn't tell truly.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.saga_in_memory import Saga, Violation
from tests.unit.saga_parts import MAX_SENDS, MAX_UNDOS, Attempt, Effect, Tool
from turnsaga.ledger import CLOSED, IN_DOUBT, OPEN_TURN, State, TurnState

CAMPAIGN = os.environ.get("TURNSAGA_CAMPAIGN")
STANDS = frozenset({State.COMMITTED, State.STANDING})
GONE = frozenset({State.RELEASED, State.FAILED, State.COMPENSATED})

TOOLS = (
    Tool(),
    Tool(can_look_up=True),
    Tool(repeat="own id"),
    Tool(repeat="once", can_look_up=True),
    Tool(repeat="once", can_look_up=True, undo="once"),
    Tool(repeat="once", undo="once"),
    Tool(undo=None),
    Tool(repeat="once", can_look_up=True, undo=None),
    Tool(job=True),
    Tool(repeat="once", can_look_up=True, job=True),
)

tools = st.sampled_from(TOOLS)
numbers = st.integers(0, 5)

T = TypeVar("T")


def pick(items: Sequence[T], number: int) -> T:
    return items[number % len(items)]


class SagaMachine(RuleBasedStateMachine):
    """One turn of a few effects, from its first call to the end of its settling and beyond."""

    def __init__(self) -> None:
        super().__init__()
        self.saga = Saga()
        self.stragglers_first = False

    def has_attempts(self) -> bool:
        return bool(self.saga.attempts)

    def effect(self, number: int) -> Effect:
        return pick(self.saga.effects, number)

    def attempt(self, number: int) -> Attempt:
        return pick(self.saga.attempts, number)

    # ------------------------------------------------------------ the turn and its users

    @initialize(chosen=st.lists(tools, min_size=1, max_size=2), stragglers_first=st.booleans())
    def begin(self, chosen: list[Tool], *, stragglers_first: bool) -> None:
        self.stragglers_first = stragglers_first
        for tool in chosen:
            self.saga.prepare(tool)
            self.saga.open_gate(self.saga.effects[-1])

    @precondition(lambda self: len(self.saga.effects) < 3)
    @rule(tool=tools, held=st.booleans())
    def prepare(self, tool: Tool, *, held: bool) -> None:
        known = len(self.saga.effects)
        self.saga.prepare(tool)
        if not held and len(self.saga.effects) > known:
            self.saga.open_gate(self.saga.effects[-1])

    @rule(number=numbers)
    def open_gate(self, number: int) -> None:
        self.saga.open_gate(self.effect(number))

    @rule()
    def abort(self) -> None:
        self.saga.abort()

    @rule()
    def fail(self) -> None:
        self.saga.fail()

    @rule()
    def complete(self) -> None:
        self.saga.complete()

    # ------------------------------------------------------------ the engine and recovery

    @rule(number=numbers)
    def retry(self, number: int) -> None:
        self.saga.retry(self.effect(number))

    @rule()
    def lose_run(self) -> None:
        self.saga.lose_run()

    @precondition(lambda self: self.saga.fenced)
    @rule(number=numbers)
    def settle(self, number: int) -> None:
        self.saga.settle(lambda count: number % count)

    @precondition(lambda self: self.saga.fenced)
    @rule()
    def settle_and_die(self) -> None:
        self.saga.settle(lambda _: 0, dies=True)

    @precondition(lambda self: self.saga.fenced)
    @rule(number=numbers)
    def hand_over(self, number: int) -> None:
        self.saga.hand_over(self.effect(number))

    @precondition(lambda self: any(effect.owned for effect in self.saga.effects))
    @rule()
    def follow(self) -> None:
        for effect in self.saga.effects:
            self.saga.follow(effect)

    # ------------------------------------------------------------ workers

    @precondition(has_attempts)
    @rule(number=numbers)
    def call_and_get_the_answer(self, number: int) -> None:
        attempt = self.attempt(number)
        self.saga.send(attempt)
        self.saga.land(attempt)
        self.saga.answer(attempt)

    @precondition(has_attempts)
    @rule(number=numbers, landed=st.booleans())
    def call_and_lose_the_answer(self, number: int, *, landed: bool) -> None:
        attempt = self.attempt(number)
        self.saga.send(attempt)
        if landed:
            self.saga.land(attempt)
        self.saga.lose_answer(attempt)

    @precondition(has_attempts)
    @rule(number=numbers)
    def send(self, number: int) -> None:
        self.saga.send(self.attempt(number))

    @precondition(has_attempts)
    @rule(number=numbers)
    def not_sent(self, number: int) -> None:
        self.saga.not_sent(self.attempt(number))

    @precondition(has_attempts)
    @rule(number=numbers)
    def answer(self, number: int) -> None:
        self.saga.answer(self.attempt(number))

    @precondition(has_attempts)
    @rule(number=numbers)
    def crash(self, number: int) -> None:
        self.saga.crash(self.attempt(number))

    @precondition(has_attempts)
    @rule(number=numbers)
    def abandon(self, number: int) -> None:
        self.saga.abandon(self.attempt(number))

    # ------------------------------------------------------------ network, vendors, time

    @precondition(has_attempts)
    @rule(number=numbers)
    def land(self, number: int) -> None:
        self.saga.land(self.attempt(number))

    @precondition(has_attempts)
    @rule(number=numbers)
    def lose(self, number: int) -> None:
        self.saga.lose(self.attempt(number))

    @precondition(has_attempts)
    @rule(number=numbers)
    def refuse(self, number: int) -> None:
        self.saga.refuse(self.attempt(number))

    @precondition(lambda self: any(effect.job != "none" for effect in self.saga.effects))
    @rule(number=numbers, cancelled=st.booleans())
    def end_job(self, number: int, *, cancelled: bool) -> None:
        jobs = [effect for effect in self.saga.effects if effect.job != "none"]
        self.saga.end_job(pick(jobs, number), cancelled=cancelled)

    @rule(seconds=st.sampled_from((1, 3, 12)))
    def pass_time(self, seconds: int) -> None:
        self.saga.pass_time(timedelta(seconds=seconds))

    # ------------------------------------------------------------ what is always true

    @invariant()
    def nothing_is_applied_before_a_durable_claim(self) -> None:
        for effect in self.saga.effects:
            assert effect.was_committing or not effect.applied
            assert not (effect.state in {State.PREPARED, State.RELEASED} and effect.applied)

    @invariant()
    def one_key_is_applied_once(self) -> None:
        for effect in self.saga.effects:
            assert effect.standing <= 1
            assert effect.applied <= 1 or effect.tool.repeat == "own id"

    @invariant()
    def nothing_is_undone_twice(self) -> None:
        for effect in self.saga.effects:
            assert effect.undone <= effect.applied

    @invariant()
    def what_cannot_be_undone_is_left_alone(self) -> None:
        for effect in self.saga.effects:
            assert effect.undone == 0 or effect.tool.undo is not None

    @invariant()
    def no_budget_is_overdrawn(self) -> None:
        for effect in self.saga.effects:
            assert effect.sends <= MAX_SENDS
            # One more where the first attempt died before its own claim.
            assert effect.undos_begun <= MAX_UNDOS + 1

    @invariant()
    def a_fenced_turn_does_not_complete(self) -> None:
        assert not (self.saga.fenced and self.saga.turn is TurnState.COMPLETED)

    @invariant()
    def an_ended_turn_tells_what_stands(self) -> None:
        if self.saga.turn in OPEN_TURN:
            return
        for effect in self.saga.effects:
            if effect.owned:
                continue
            assert effect.state is not State.PREPARED
            if effect.state in STANDS:
                assert effect.standing == 1, effect
            if effect.state in GONE:
                assert effect.standing == 0, effect
                assert effect.job not in {"runs", "asked to cancel"}, effect

    def teardown(self) -> None:
        """Stop the turn, follow the plan to its end, let what is still under way land, and compare."""
        self.saga.abort()
        for _ in range(100):
            before = self._shape()
            self._end_own_calls()
            self.saga.settle(lambda _: 0)
            if self._shape() == before and not self._let_something_happen():
                break
        else:
            raise Violation("settling doesn't come to its end")

        assert self.saga.turn not in OPEN_TURN
        self.nothing_is_applied_before_a_durable_claim()
        self.one_key_is_applied_once()
        self.nothing_is_undone_twice()
        self.what_cannot_be_undone_is_left_alone()
        self.no_budget_is_overdrawn()
        self.an_ended_turn_tells_what_stands()
        for effect in self.saga.effects:
            assert effect.state in CLOSED or effect.owned, effect
            assert effect.state is not State.COMMITTED or self.saga.turn is TurnState.COMPLETED, effect

    def _shape(self) -> tuple[object, ...]:
        effects = self.saga.effects
        rows = tuple((effect.state, effect.token, effect.undos_begun, effect.job) for effect in effects)
        return (self.saga.turn, self.saga.now, len(self.saga.attempts), *rows)

    def _end_own_calls(self) -> None:
        for attempt in [one for one in self.saga.attempts if one.run == self.saga.run]:
            self.saga.send(attempt)
            self.saga.land(attempt)
            self.saga.answer(attempt)
            if attempt in self.saga.attempts:
                self.saga.crash(attempt)

    def _let_something_happen(self) -> bool:
        """Let what nobody waits for move on, since the plan can't: tell if anything did."""
        before = self._shape()
        for effect in self.saga.effects:
            self.saga.end_job(effect, cancelled=True)
            self.saga.follow(effect)
        if self._shape() != before:
            return True
        asked = any(effect.state in IN_DOUBT and effect.tool.can_look_up for effect in self.saga.effects)
        for attempt in list(self.saga.attempts):
            self.saga.send(attempt)
            if self.stragglers_first or not asked:
                self.saga.land(attempt)
            self.saga.answer(attempt)
            if attempt in self.saga.attempts and not attempt.on_wire:
                self.saga.crash(attempt)
        if asked:
            self.saga.pass_time(timedelta(seconds=1))
        return asked or self._shape() != before


SagaMachine.TestCase.settings = settings(
    max_examples=10_000 if CAMPAIGN else 1500,
    stateful_step_count=30,
    deadline=None,
    database=None,
    # The default run is the same everywhere; a campaign looks elsewhere each time.
    derandomize=not CAMPAIGN,
    suppress_health_check=[HealthCheck.too_slow],
)

TestSaga = SagaMachine.TestCase
