"""A turn in memory: ledger, workers, network and vendors, driven step by step by ``test_properties``.

It stands for the store and the workers without being either. What may happen to a row is asked of
``ledger.advance``, what is to be done next of ``settle``; the rest is the plainest thing that works. Time
is a number of seconds that only ``pass_time`` moves.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, assert_never

from tests.unit.saga_parts import KEY_LIFE, LANDING_WINDOW, NOBODY, SEND_WITHIN, Attempt, Effect, Tool
from turnsaga import settle
from turnsaga.errors import IllegalTransition
from turnsaga.ledger import (
    CLOSED,
    IN_DOUBT,
    UNDOABLE,
    Event,
    State,
    TurnEventName,
    TurnState,
    advance,
    advance_turn,
)
from turnsaga.settle import Action

__all__ = ["Saga", "Violation"]


class Violation(AssertionError):
    """Something happened that the contract rules out."""


@dataclass
class Saga:
    """One turn and everything that acts on it."""

    now: datetime = datetime(2026, 3, 1, tzinfo=UTC)
    turn: TurnState = TurnState.RUNNING
    fenced: bool = False
    run: int = 0
    orders: int = 0
    effects: list[Effect] = field(default_factory=list[Effect])
    attempts: list[Attempt] = field(default_factory=list[Attempt])

    # ------------------------------------------------------------ the turn

    def prepare(self, tool: Tool) -> None:
        """Store a request, unless the turn is fenced."""
        if self.turn is TurnState.RUNNING:
            state = advance(None, Event.REQUEST_STORED)
            self.effects.append(Effect(name=f"e{len(self.effects)}", tool=tool, state=state))

    def open_gate(self, effect: Effect) -> None:
        """Claim a row that is prepared, and let its attempt begin."""
        if self.turn is TurnState.RUNNING and self._can(effect, Event.GATE_OPENED):
            self._claim_commit(effect, Event.GATE_OPENED)

    def abort(self) -> None:
        """Fence the turn; an abort after the end, or a second one, changes nothing."""
        self._fence(TurnEventName.ABORT_ACCEPTED)

    def fail(self) -> None:
        """Fence the turn since it can't go on by itself."""
        self._fence(TurnEventName.FAILURE_MET)

    def complete(self) -> None:
        """Complete the turn, if nothing of it is held, under way or in doubt without an owner."""
        open_rows = any(effect.state not in CLOSED and not effect.owned for effect in self.effects)
        if self.turn is TurnState.RUNNING and not open_rows and not self._calling():
            self.turn = advance_turn(self.turn, TurnEventName.COMPLETED)

    def retry(self, effect: Effect) -> None:
        """Do what a running turn does about an effect in doubt that none of its calls works on."""
        if self.fenced or effect.owned or effect.state not in IN_DOUBT or self._calling(effect):
            return
        self._carry_out(effect, settle.resolution(effect.row, fenced=False, now=self.now))

    def lose_run(self) -> None:
        """End the run; its calls go on in processes that nobody waits for, and another run takes over."""
        self.run += 1

    # ------------------------------------------------------------ settling

    def settle(self, choose: Callable[[int], int], *, dies: bool = False) -> bool:
        """Take one step of the plan, if the turn is fenced and its own calls have ended; tell if it did.

        ``choose`` picks one of as many steps as it is given. If the worker ``dies``, an undo ends before
        its claim, and nothing but the number of its attempts tells of it.
        """
        if not self.fenced or self._calling():
            return False
        plan = settle.plan([effect.row for effect in self.effects], now=self.now)
        if plan.settled:
            if self.turn in {TurnState.ABORTING, TurnState.FAILING}:
                self.turn = advance_turn(self.turn, TurnEventName.SETTLED)
            return False
        if not plan.steps:
            raise Violation("settling rests before its end")
        step = plan.steps[choose(len(plan.steps))]
        effect = next(effect for effect in self.effects if effect.name == step.effect)
        effect.undos_begun += step.action is Action.UNDO
        if not (dies and step.action is Action.UNDO):
            self._carry_out(effect, step.action)
        return True

    def hand_over(self, effect: Effect) -> None:
        """Show an effect as open: its bounded wait is over."""
        if self.fenced and effect.state in {State.UNKNOWN, State.ACCEPTED} and not effect.owned:
            self._hand_over(effect)

    def follow(self, effect: Effect) -> None:
        """Ask about an effect that was handed over: what its owner does, also after the turn."""
        if effect.owned and effect.state is State.UNKNOWN and effect.tool.can_look_up:
            self._look_up(effect)
        elif effect.owned and effect.state is State.ACCEPTED:
            self._poll(effect)

    def _carry_out(self, effect: Effect, action: Action) -> None:
        match action:
            case Action.RELEASE:
                self._move(effect, Event.DROPPED)
            case Action.LOOK_UP:
                self._look_up(effect)
            case Action.SEND_AGAIN:
                self._claim_commit(effect, Event.CLAIMED_AGAIN)
            case Action.FOLLOW_JOB:
                self._poll(effect)
            case Action.HAND_OVER:
                self._hand_over(effect)
            case Action.WAIT:
                self.pass_time(timedelta(seconds=1))
            case Action.UNDO:
                self._claim_undo(effect)
            case Action.GIVE_UP_UNDO:
                self._give_up_undo(effect)
            case Action.LEAVE_STANDING:
                self._move(effect, Event.LEFT_STANDING)
            case _:
                assert_never(action)

    def _hand_over(self, effect: Effect) -> None:
        if effect.state is State.COMMITTING:
            self._move(effect, Event.COMMIT_LOST)
        self._move(effect, Event.HANDED_OVER)
        effect.owned = True

    def _give_up_undo(self, effect: Effect) -> None:
        if effect.state is State.COMMITTED:
            self._move(effect, Event.UNDO_CLAIMED)
        self._move(effect, Event.UNDO_FAILED)
        effect.owned = True

    def _look_up(self, effect: Effect) -> None:
        if effect.state is State.COMMITTING:
            self._move(effect, Event.COMMIT_LOST)
        if effect.job in {"runs", "asked to cancel"}:
            self._move(effect, Event.FOUND_JOB)
            effect.owned = False
            effect.answers += 1
        elif effect.applied:
            self._commit(effect, Event.FOUND_APPLIED)
        elif effect.job == "cancelled" or effect.wire_until is None or self.now >= effect.wire_until:
            self._move(effect, Event.PROVED_NOT_APPLIED)
            effect.owned = False

    def _poll(self, effect: Effect) -> None:
        match effect.job:
            case "runs":
                # The reply to a cancel proves nothing; the job's own end does.
                effect.job = "asked to cancel" if self.fenced else "runs"
            case "done":
                self._commit(effect, Event.JOB_LANDED)
            case "cancelled":
                self._move(effect, Event.JOB_CANCELLED)
                effect.owned = False
            case "asked to cancel" | "none":
                pass
            case _:
                assert_never(effect.job)

    def _claim_undo(self, effect: Effect) -> None:
        """Claim a row to undo it. An undo that isn't keyed and may have been sent is never sent twice."""
        self._judge_undo(effect)
        if effect.state is State.COMPENSATING and effect.tool.undo == "once":
            self._give_up_undo(effect)
            return
        self._move(effect, Event.UNDO_CLAIMED)
        self._begin(effect, "undo")

    def _judge_undo(self, effect: Effect) -> None:
        others = [other for other in self.effects if other is not effect]
        if any(other.state in IN_DOUBT and not other.owned for other in others):
            raise Violation("an undo starts while another effect may still commit")
        later = [other for other in others if (other.order or 0) > (effect.order or 0) and not other.late]
        if any(other.state in UNDOABLE for other in later):
            raise Violation("an undo overtakes that of a later commit")

    # ------------------------------------------------------------ workers

    def send(self, attempt: Attempt) -> None:
        """Put the request on the wire, unless the attempt woke after its send-by instant."""
        effect = attempt.effect
        if attempt.sent:
            return
        if self.now > attempt.send_by:
            self.not_sent(attempt)
            return
        if not effect.was_committing or effect.state in {State.PREPARED, State.RELEASED}:
            raise Violation("a request is sent before its claim is durable")
        attempt.sent = attempt.on_wire = True

    def not_sent(self, attempt: Attempt) -> None:
        """Let an attempt know that it has not sent: too late, or the connection was refused."""
        if not attempt.sent:
            attempt.sent = attempt.refused = True

    def answer(self, attempt: Attempt) -> None:
        """Let the attempt get its answer, and write it."""
        if not attempt.alive or not (attempt.landed or attempt.refused):
            return
        self.attempts.remove(attempt)
        if attempt.kind == "undo":
            self._write_undo(attempt)
        else:
            self._write_commit(attempt)

    def lose_answer(self, attempt: Attempt) -> None:
        """Let the attempt end without an answer, and write that; its request may land all the same."""
        if attempt.alive and attempt.sent:
            if attempt.kind == "commit" and self._holds(attempt):
                self._move(attempt.effect, Event.COMMIT_LOST)
            self.crash(attempt)

    def crash(self, attempt: Attempt) -> None:
        """Let the process die: nothing is written, and what was sent may still land."""
        attempt.alive, attempt.run = False, NOBODY
        self._bury(attempt)

    def abandon(self, attempt: Attempt) -> None:
        """Let the engine give the attempt up, while its process lives on."""
        attempt.run = NOBODY

    def _bury(self, attempt: Attempt) -> None:
        if not attempt.alive and not attempt.on_wire and attempt in self.attempts:
            self.attempts.remove(attempt)

    def _write_commit(self, attempt: Attempt) -> None:
        effect = attempt.effect
        if attempt.landed and effect.state is State.UNKNOWN and not effect.tool.job:
            self._commit(effect, Event.EVIDENCE_ARRIVED)
        elif not self._holds(attempt):
            return
        elif attempt.refused:
            effect.answers += 1
            # Proof for one attempt alone: another one may have been applied, or be so later.
            self._move(effect, Event.COMMIT_LOST if effect.sends > effect.answers else Event.COMMIT_REFUSED)
        elif effect.job in {"runs", "asked to cancel"}:
            self._move(effect, Event.JOB_ACCEPTED)
            effect.answers += 1
        elif effect.job == "cancelled":
            self._move(effect, Event.COMMIT_REFUSED)
        else:
            self._commit(effect, Event.COMMIT_CONFIRMED)

    def _write_undo(self, attempt: Attempt) -> None:
        effect = attempt.effect
        if effect.state is not State.COMPENSATING or effect.token != attempt.token:
            return
        if attempt.landed:
            self._move(effect, Event.UNDO_CONFIRMED)
        else:
            self._give_up_undo(effect)

    # ------------------------------------------------------------ network and vendors

    def land(self, attempt: Attempt) -> None:
        """Let a request reach its vendor."""
        if not attempt.on_wire:
            return
        attempt.on_wire, attempt.landed = False, True
        effect = attempt.effect
        if attempt.kind == "undo":
            if effect.tool.undo == "once" or effect.standing:
                effect.undone += 1
        elif not self._replayed(effect):
            effect.known_from = effect.known_from or self.now
            if effect.tool.job:
                effect.job = "runs"
            else:
                effect.applied += 1
        self._bury(attempt)

    def lose(self, attempt: Attempt) -> None:
        """Let a request get lost on the way."""
        attempt.on_wire = False
        self._bury(attempt)

    def refuse(self, attempt: Attempt) -> None:
        """Let the vendor refuse a request that it hasn't taken before."""
        if attempt.on_wire and not (attempt.kind == "commit" and self._replayed(attempt.effect)):
            attempt.on_wire, attempt.refused = False, True
            self._bury(attempt)

    def end_job(self, effect: Effect, *, cancelled: bool) -> None:
        """Let a job come to its end; one that nobody asked to cancel completes."""
        if effect.job == "asked to cancel" and cancelled:
            effect.job = "cancelled"
        elif effect.job in {"runs", "asked to cancel"}:
            effect.job = "done"
            effect.applied += 1

    def pass_time(self, span: timedelta) -> None:
        """Move the clock; a request whose landing window is over doesn't land any more."""
        self.now += span
        for attempt in list(self.attempts):
            if attempt.on_wire and self.now >= attempt.send_by + LANDING_WINDOW:
                self.lose(attempt)

    def _replayed(self, effect: Effect) -> bool:
        """Tell whether the vendor answers with its first result instead of applying anew."""
        if effect.tool.repeat == "own id":
            return effect.standing > 0 or effect.job in {"runs", "asked to cancel"}
        if effect.tool.repeat == "once" or effect.known_from is None:
            return False
        return self.now < effect.known_from + KEY_LIFE

    # ------------------------------------------------------------ the ledger

    def _can(self, effect: Effect, event: Event) -> bool:
        try:
            advance(effect.state, event)
        except IllegalTransition:
            return False
        return True

    def _move(self, effect: Effect, event: Event) -> None:
        """Advance a row under a new token, so that whoever held the old one writes nothing more."""
        effect.state = advance(effect.state, event)
        effect.token += 1

    def _commit(self, effect: Effect, event: Event) -> None:
        self._move(effect, event)
        effect.answers += event is not Event.JOB_LANDED
        self.orders += 1
        effect.order = self.orders
        effect.late, effect.owned = effect.owned, False

    def _claim_commit(self, effect: Effect, event: Event) -> None:
        if event is Event.GATE_OPENED and self.fenced:
            raise Violation("a gate opens after the fence")
        if self.fenced and effect.tool.undo is None:
            raise Violation("an abort creates what it can't take back")
        self._move(effect, event)
        effect.was_committing = True
        effect.sends += 1
        effect.send_by = self.now + SEND_WITHIN
        effect.first_claim = effect.first_claim or self.now
        self._begin(effect, "commit")

    def _begin(self, effect: Effect, kind: Literal["commit", "undo"]) -> None:
        self.attempts.append(
            Attempt(
                effect=effect, kind=kind, token=effect.token, send_by=self.now + SEND_WITHIN, run=self.run
            )
        )

    def _holds(self, attempt: Attempt) -> bool:
        return attempt.effect.state is State.COMMITTING and attempt.effect.token == attempt.token

    def _calling(self, effect: Effect | None = None) -> bool:
        return any(
            attempt.run == self.run and (effect is None or attempt.effect is effect)
            for attempt in self.attempts
        )

    def _fence(self, event: TurnEventName) -> None:
        if self.turn is TurnState.RUNNING:
            self.turn = advance_turn(self.turn, event)
            self.fenced = True
