"""What crosses a boundary: Temporal payloads, and the views that the API shows. Frozen pydantic models.

Payloads carry references and small results only. Messages, arguments, requests and receipts stay in the
ledger, so histories stay small and hold neither secrets nor what users wrote.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnsaga.ledger import State, TurnState

__all__ = [
    "MAX_NOTE",
    "AbortSignal",
    "CallOutcome",
    "CallPlan",
    "CallRef",
    "Decided",
    "Decision",
    "DecisionAnswer",
    "DecisionRequest",
    "DueRequest",
    "EffectBrief",
    "EffectRef",
    "EffectView",
    "Entered",
    "FenceAnswer",
    "FenceRequest",
    "HandOver",
    "HeldFor",
    "NextSteps",
    "Nudge",
    "PlannedStep",
    "Principal",
    "Resolution",
    "Ruling",
    "RulingWord",
    "SettleRequest",
    "Settlement",
    "StepPlan",
    "StepRef",
    "TurnDecision",
    "TurnEvent",
    "TurnRef",
    "TurnResult",
    "TurnStart",
    "TurnView",
    "UndoOffer",
]


class _Frozen(BaseModel):
    # New fields get defaults, and unknown ones are dropped: a history that was recorded by a newer
    # worker must still be readable by an older one during a deploy.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Principal(_Frozen):
    """Who acts. ``(tenant, user)`` owns conversations; ``role`` is user, service or operator."""

    tenant: str
    user: str
    role: Literal["user", "service", "operator"] = "user"


class TurnRef(_Frozen):
    """Names a turn: what every workflow and activity is given."""

    tenant: str
    turn: str


class TurnStart(_Frozen):
    """The argument of a turn's workflow. ``conversation`` is shown as a search attribute.

    A ``queued`` turn first waits until the conversation's earlier ones have ended.
    """

    tenant: str
    turn: str
    conversation: str
    deadline_ms: int | None = None
    queued: bool = False

    @property
    def ref(self) -> TurnRef:
        """Return the turn's name alone."""
        return TurnRef(tenant=self.tenant, turn=self.turn)


class StepRef(_Frozen):
    """Names one model request of a turn; ``step`` counts from 1."""

    tenant: str
    turn: str
    step: int


class CallRef(_Frozen):
    """Names one tool call of a model's reply; ``index`` counts from 0 in the reply's order."""

    tenant: str
    turn: str
    step: int
    index: int


class EffectRef(_Frozen):
    """Names an effect."""

    tenant: str
    turn: str
    effect: str


class DecisionRequest(_Frozen):
    """The payload of the updates ``confirm`` and ``reject``: an answer to exactly what was shown."""

    effect: str = Field(min_length=1, max_length=64)
    version: int = Field(ge=1, strict=True)
    digest: str = Field(min_length=1, max_length=100)
    by: str | None = Field(default=None, max_length=200)


class Decision(_Frozen):
    """A person's answer about an effect that is held for it, as the ledger takes it."""

    tenant: str
    effect: str
    confirmed: bool
    version: int
    digest: str
    by: str | None
    via: Literal["api", "update"]


class TurnDecision(_Frozen):
    """An answer that came to a turn's workflow: it may be about an effect of that turn alone."""

    turn: str
    decision: Decision


DecisionAnswer = Literal[
    "accepted", "already_decided", "turn_aborted", "expired", "changed", "not_held", "not_found"
]
"""What became of an answer. All but ``accepted`` mean that it changed nothing."""


MAX_NOTE: Final = 1000
"""Characters that a person's note may have."""
RulingWord = Literal["applied", "not_applied", "undone", "stands"]
"""What a person found out about an effect that needed one."""


class Ruling(_Frozen):
    """A person's word on an effect that needs one, as the ledger takes it.

    ``note`` says how they know; of an effect that stands it is shown to its user as the reason.
    """

    tenant: str
    effect: str
    word: RulingWord
    note: str = Field(min_length=1, max_length=MAX_NOTE)
    by: str
    via: Literal["api", "cli"]


class DueRequest(_Frozen):
    """The question whether a held effect may be committed; ``turn_ended`` if the stream is whole."""

    tenant: str
    turn: str
    effect: str
    turn_ended: bool = False


class Nudge(_Frozen):
    """The payload of the signal ``decided``: an effect to look at again. It decides nothing itself."""

    effect: str | None = None


class Entered(_Frozen):
    """Whether a turn that was queued behind another may begin; ``state`` is queued until then."""

    state: TurnState


class FenceRequest(_Frozen):
    """A wish to end a running turn and to settle it; ``cause`` decides between aborting and failing."""

    tenant: str
    turn: str
    cause: Literal["abort", "failure"]
    via: Literal["api", "signal", "cancel", "engine", "recovery"]
    reason: str | None = None
    by: str | None = None
    seen: int | None = None


HeldFor = Literal["confirmation", "turn_end", "delay", "resource", "viewer"]
"""What a prepared effect waits for."""


class EffectBrief(_Frozen):
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


class Decided(_Frozen):
    """The ledger's word on an answer; ``first`` tells that this very answer decided."""

    answer: DecisionAnswer
    first: bool = False
    effect: EffectBrief | None = None


class CallPlan(_Frozen):
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


class StepPlan(_Frozen):
    """A model's reply: the calls to run. Refused calls have their result in the ledger already."""

    step: int
    calls: tuple[CallPlan, ...] = ()
    answered: int = 0
    fenced: bool = False

    @property
    def final(self) -> bool:
        """True if the reply asked for no tool at all, so that the turn's text is whole."""
        return not self.calls and not self.answered


class PlannedStep(_Frozen):
    """One thing that the workflow has to do in order to settle; the ledger-only ones are done already."""

    action: Literal["look_up", "send_again", "follow_job", "undo", "wait"]
    effect: str
    step: int
    call: CallPlan
    wait_ms: int = 0


class NextSteps(_Frozen):
    """The answer to "what next?" while a turn settles. ``briefs`` are of effects that have moved.

    ``next_turn`` is the one of the conversation that was queued and may begin, now that this one ended.
    """

    steps: tuple[PlannedStep, ...] = ()
    settled: bool = False
    state: TurnState = TurnState.RUNNING
    briefs: tuple[EffectBrief, ...] = ()
    next_turn: str | None = None


class AbortSignal(_Frozen):
    """The payload of the signal ``abort``. ``seen`` is the number of the last event that the user saw.

    ``next`` is what the ledger said to do when the fence was written, for a run with no call in flight; what
    comes by another way than ``TurnClient`` leaves it out, and the run asks.
    """

    reason: str | None = Field(default=None, max_length=500)
    by: str | None = Field(default=None, max_length=200)
    seen: int | None = Field(default=None, ge=0)
    next: NextSteps | None = None


class CallOutcome(_Frozen):
    """How a call ended as far as its attempt could tell. ``fenced`` tells that the turn must settle.

    ``repeated`` tells that the effect is an earlier call's, which sees to it. After an undo, ``next`` is
    what the ledger says to do then, asked in the transaction of its outcome.
    """

    effect: EffectBrief | None = None
    fenced: bool = False
    repeated: bool = False
    next: NextSteps | None = None


class SettleRequest(_Frozen):
    """The question "what next?"; ``given_up`` names effects whose undo has used up its budget.

    ``fence`` is written first, if it is given and the turn has none.
    """

    tenant: str
    turn: str
    given_up: tuple[str, ...] = ()
    fence: FenceRequest | None = None


class FenceAnswer(_Frozen):
    """Whether this request wrote the fence, the turn's state now, and the effects that it released.

    ``next`` is there if nothing was in flight and something is to be undone.
    """

    first: bool
    state: TurnState
    briefs: tuple[EffectBrief, ...] = ()
    next: NextSteps | None = None


class HandOver(_Frozen):
    """A wish to show an effect in doubt as open, since the bounded wait for its outcome is over."""

    tenant: str
    turn: str
    effect: str
    reason: str


class Resolution(_Frozen):
    """What a look-up found out."""

    effect: EffectBrief
    decided: bool


class UndoOffer(_Frozen):
    """Where an effect can be undone, until when, and what that costs."""

    href: str
    until: datetime | None = None
    cost: str | None = None


class EffectView(_Frozen):
    """One effect as people and clients see it; ``data`` of every ``tool_*`` event.

    ``identity`` is the business identity, the same string as the vendor's record shows; ``order`` the
    place among the turn's commits; ``digest`` and ``expires_at`` what a confirmation must answer.
    """

    effect: str
    turn: str
    conversation: str
    tool: str
    identity: str | None
    key: str
    title: str
    summary: str
    state: State
    held_for: HeldFor | None
    needs_attention: bool
    digest: str
    expires_at: datetime | None
    undo: UndoOffer | None
    no_undo_reason: str | None
    error: str | None
    version: int
    order: int | None
    at: datetime


class Settlement(_Frozen):
    """What became of every effect of an ended turn: lists of effect ids. Computed from the ledger."""

    at: datetime
    committed: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    compensated: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    compensation_failed: tuple[str, ...] = ()


class TurnView(_Frozen):
    """One turn as the API shows it. ``settlement`` is None until the turn has ended."""

    turn: str
    conversation: str
    state: TurnState
    reason: str | None
    effects: tuple[EffectView, ...]
    settlement: Settlement | None


class TurnResult(_Frozen):
    """What the turn's workflow returns."""

    turn: str
    state: TurnState


class TurnEvent(_Frozen):
    """One event of a turn; ``number`` is contiguous from 1 in its turn."""

    turn: str
    number: int
    kind: str
    data: Mapping[str, Any]
    at: datetime
