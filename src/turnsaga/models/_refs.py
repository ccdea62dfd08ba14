"""Who acts, and what is worked on: names that everything else refers by."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["CallRef", "EffectRef", "Frozen", "Principal", "StepRef", "TurnRef", "TurnStart"]


class Frozen(BaseModel):
    # New fields get defaults, and unknown ones are dropped: a history that was recorded by a newer
    # worker must still be readable by an older one during a deploy.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Principal(Frozen):
    """Who acts. ``(tenant, user)`` owns conversations; ``role`` is user, service or operator."""

    tenant: str
    user: str
    role: Literal["user", "service", "operator"] = "user"


class TurnRef(Frozen):
    """Names a turn: what every workflow and activity is given."""

    tenant: str
    turn: str


class TurnStart(Frozen):
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


class StepRef(Frozen):
    """Names one model request of a turn; ``step`` counts from 1."""

    tenant: str
    turn: str
    step: int


class CallRef(Frozen):
    """Names one tool call of a model's reply; ``index`` counts from 0 in the reply's order."""

    tenant: str
    turn: str
    step: int
    index: int


class EffectRef(Frozen):
    """Names an effect."""

    tenant: str
    turn: str
    effect: str
