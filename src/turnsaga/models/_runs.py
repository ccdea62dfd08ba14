"""What a run and the ledger tell each other."""

from typing import Literal

from pydantic import Field

from turnsaga.ledger import State, TurnState
from turnsaga.models._answers import DecisionAnswer
from turnsaga.models._refs import Frozen

__all__ = [
    "AbortSignal",
    "CallOutcome",
    "CallPlan",
    "Decided",
    "DueRequest",
    "EffectBrief",
    "Entered",
    "FenceAnswer",
    "FenceRequest",
    "HandOver",
    "HeldFor",
    "NextSteps",
    "PlannedStep",
    "Resolution",
    "SettleRequest",
    "StepPlan",
    "TurnResult",
]


HeldFor = Literal["confirmation", "turn_end", "delay", "resource", "viewer"]
"""What a prepared effect waits for."""


class EffectBrief(Frozen):
    """What a workflow remembers of an effect: enough for the Temporal UI, and no secret.

    ``wait_ms`` is set while the effect is held for an answer or a delay: when to look at it again.
    """

    effect: str
    tool: str
    summary: str
    state: State
    order: int | None = None
    note: str | None = None
    held_for: HeldFor | None = None
    wait_ms: int | None = None


class Decided(Frozen):
    """The ledger's word on an answer; ``first`` tells that this very answer decided."""

    answer: DecisionAnswer
    first: bool = False
    effect: EffectBrief | None = None


class DueRequest(Frozen):
    """The question whether a held effect may be committed; ``turn_ended`` if the stream is whole."""

    tenant: str
    turn: str
    effect: str
    turn_ended: bool = False


class Entered(Frozen):
    """Whether a turn that was queued behind another may begin; ``state`` is queued until then."""

    state: TurnState


class CallPlan(Frozen):
    """One call that the model asked for, as the workflow runs it.

    ``held`` calls are prepared first and committed when they are due. ``after`` names calls of the same
    reply that touch the same thing, so that this one begins when they have ended.
    """

    index: int
    tool: str
    kind: Literal["effect", "read"]
    summary: str
    undo_summary: str = ""
    attempt_ms: int
    total_ms: int
    undo_attempt_ms: int = 0
    undo_total_ms: int = 0
    resolve_ms: int = 0
    held: bool = False
    after: tuple[int, ...] = ()
    ends_turn: bool = False


class StepPlan(Frozen):
    """A model's reply: the calls to run. Refused calls have their result in the ledger already."""

    step: int
    calls: tuple[CallPlan, ...] = ()
    answered: int = 0
    fenced: bool = False

    @property
    def final(self) -> bool:
        """True if the reply asked for no tool at all, so that the turn's text is whole."""
        return not self.calls and not self.answered


class PlannedStep(Frozen):
    """One thing that the workflow has to do in order to settle; the ledger-only ones are done already."""

    action: Literal["look_up", "send_again", "follow_job", "undo", "wait"]
    effect: str
    step: int
    call: CallPlan
    wait_ms: int = 0


class NextSteps(Frozen):
    """The answer to "what next?" while a turn settles. ``briefs`` are of effects that have moved.

    ``next_turn`` is the one of the conversation that was queued and may begin, now that this one ended.
    """

    steps: tuple[PlannedStep, ...] = ()
    settled: bool = False
    state: TurnState = TurnState.RUNNING
    briefs: tuple[EffectBrief, ...] = ()
    next_turn: str | None = None


class AbortSignal(Frozen):
    """The payload of the signal ``abort``. ``seen`` is the number of the last event that the user saw.

    ``next`` is what the ledger said to do when the fence was written, for a run with no call in flight; what
    comes by another way than ``TurnClient`` leaves it out, and the run asks.
    """

    reason: str | None = Field(default=None, max_length=500)
    by: str | None = Field(default=None, max_length=200)
    seen: int | None = Field(default=None, ge=0)
    next: NextSteps | None = None


class CallOutcome(Frozen):
    """How a call ended as far as its attempt could tell. ``fenced`` tells that the turn must settle.

    ``repeated`` tells that the effect is an earlier call's, which sees to it. After an undo, ``next`` is
    what the ledger says to do then, asked in the transaction of its outcome.
    """

    effect: EffectBrief | None = None
    fenced: bool = False
    repeated: bool = False
    next: NextSteps | None = None


class FenceRequest(Frozen):
    """A wish to end a running turn and to settle it; ``cause`` decides between aborting and failing."""

    tenant: str
    turn: str
    cause: Literal["abort", "failure"]
    via: Literal["api", "signal", "cancel", "engine", "recovery"]
    reason: str | None = None
    by: str | None = None
    seen: int | None = None


class FenceAnswer(Frozen):
    """Whether this request wrote the fence, the turn's state now, and the effects that it released.

    ``next`` is there if nothing was in flight and something is to be undone.
    """

    first: bool
    state: TurnState
    briefs: tuple[EffectBrief, ...] = ()
    next: NextSteps | None = None


class SettleRequest(Frozen):
    """The question "what next?"; ``given_up`` names effects whose undo has used up its budget.

    ``fence`` is written first, if it is given and the turn has none.
    """

    tenant: str
    turn: str
    given_up: tuple[str, ...] = ()
    fence: FenceRequest | None = None


class HandOver(Frozen):
    """A wish to show an effect in doubt as open, since the bounded wait for its outcome is over."""

    tenant: str
    turn: str
    effect: str
    reason: str


class Resolution(Frozen):
    """What a look-up found out."""

    effect: EffectBrief
    decided: bool


class TurnResult(Frozen):
    """What the turn's workflow returns."""

    turn: str
    state: TurnState
