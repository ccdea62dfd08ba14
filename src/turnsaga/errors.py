"""Every error of the library, and the names under which errors cross Temporal.

::

    TurnSagaError
    ├── DeclarationError        a tool is declared inconsistently
    ├── RequestRefused          a request can't be taken as it is; nothing was written
    │   ├── InvalidRequest      a field is wrong
    │   ├── PolicyRefused       a commit policy isn't available
    │   │   └── PolicyLoosened  not to somebody who may only make it stricter
    │   ├── StartConflict       the same start key with another body
    │   ├── DecisionRefused     an answer to a held effect that changes nothing
    │   ├── ResolutionRefused   a person's word on an effect that it doesn't fit
    │   ├── TurnInProgress      the conversation has a turn that hasn't ended
    │   └── NotFound            no such thing, or not yours
    ├── KeyConflict             a key that stands for other arguments
    ├── IllegalTransition       a pair that the transition table doesn't have
    ├── StoreError
    │   ├── StoreUnavailable    the database doesn't answer
    │   │   └── StoreBusy       it answers, and has no time for this
    │   ├── StoreUnusable       it answers, and isn't a ledger of this version
    │   ├── StaleWrite          a newer claim holds the row; nothing was written
    │   └── StaleStep           a newer attempt writes this step's reply; nothing was written
    ├── EngineMisconfigured     Temporal can't be reached by what we are told
    ├── EngineUnavailable       Temporal doesn't answer
    ├── ModelUnavailable        the model gave no usable reply
    └── ToolOutcome             raised by a tool's own functions
        ├── NotApplied          proved not applied
        ├── StillRunning        the vendor says that it is still at it
        ├── OutcomeUnknown      sent, and no answer that proves anything
        ├── UndoRefused         the undo can't be done, for good
        └── ChangedSince        somebody changed it since; it isn't overwritten

A tool's functions need to raise only the last group; anything else that a commit raises counts as
``OutcomeUnknown``.
"""

from typing import Final

__all__ = [
    "CHANGED_SINCE",
    "FENCED",
    "OUTCOME_UNKNOWN",
    "STORE_UNAVAILABLE",
    "TURN_FAILED",
    "ChangedSince",
    "DecisionRefused",
    "DeclarationError",
    "EngineMisconfigured",
    "EngineUnavailable",
    "IllegalTransition",
    "InvalidRequest",
    "KeyConflict",
    "ModelUnavailable",
    "NotApplied",
    "NotFound",
    "OutcomeUnknown",
    "PolicyLoosened",
    "PolicyRefused",
    "RequestRefused",
    "ResolutionRefused",
    "StaleStep",
    "StaleWrite",
    "StartConflict",
    "StillRunning",
    "StoreBusy",
    "StoreError",
    "StoreUnavailable",
    "StoreUnusable",
    "ToolOutcome",
    "TurnInProgress",
    "TurnSagaError",
    "UndoRefused",
]

# Types of ApplicationErrors. They are stored in histories, so they are never renamed.
TURN_FAILED: Final = "TurnFailed"
OUTCOME_UNKNOWN: Final = "OutcomeUnknown"
STORE_UNAVAILABLE: Final = "StoreUnavailable"
FENCED: Final = "Fenced"
CHANGED_SINCE: Final = "ChangedSince"


_REFUSED: Final = {
    "already_decided": "another answer came first, and this one changed nothing; look at the effect",
    "turn_aborted": "its turn was stopped before this answer; nothing was sent for it",
    "expired": "the time to answer was over, and it was not done; ask the agent for it again",
    "changed": "this answers another version of it; look at what is held now and answer that",
    "not_held": "it waits for nobody's answer; look at its state",
}


class TurnSagaError(Exception):
    """Base of all errors of this library."""


class DeclarationError(TurnSagaError):
    """A tool is declared in a way that contradicts itself; says what to change."""

    def __init__(self, tool: str, problem: str, remedy: str) -> None:
        super().__init__(f"tool {tool!r}: {problem}; {remedy}")
        self.tool = tool
        self.problem = problem
        self.remedy = remedy


class RequestRefused(TurnSagaError):
    """A request that can't be taken as it is. Nothing was written.

    ``problem`` is the stable word that the HTTP API answers as ``type``.
    """

    problem = "invalid_request"


class InvalidRequest(RequestRefused):
    """A field of a request is wrong; ``field`` names it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class PolicyRefused(RequestRefused):
    """A commit policy was asked for that this tool or this version doesn't have."""

    problem = "policy_refused"

    def __init__(self, tool: str, policy: str, reason: str) -> None:
        super().__init__(f"policy {policy!r} for tool {tool!r}: {reason}")
        self.tool = tool
        self.policy = policy


class PolicyLoosened(PolicyRefused):
    """A policy that is looser than the deployment's, asked for by somebody who may only make it stricter."""

    problem = "forbidden"

    def __init__(self, tool: str, policy: str, deployment: str) -> None:
        super().__init__(
            tool,
            policy,
            f"it is looser than this deployment's {deployment!r}, and only a service may ask for that",
        )


class StartConflict(RequestRefused):
    """The start key was used before with another body; use a new key for a new turn."""

    problem = "idempotency_conflict"

    def __init__(self, turn: str) -> None:
        super().__init__(
            f"this start key already began turn {turn!r} with another body; use a new key for a new turn"
        )
        self.turn = turn


class TurnInProgress(RequestRefused):
    """The conversation has a turn that hasn't ended; wait for it or abort it."""

    problem = "turn_in_progress"

    def __init__(self, turn: str) -> None:
        super().__init__(f"turn {turn!r} of this conversation hasn't ended; wait for it, or abort it")
        self.turn = turn


class DecisionRefused(RequestRefused):
    """An answer to a held effect that changed nothing; ``answer`` says why, and is the API's word for it.

    ``already_decided`` (another answer came first), ``turn_aborted``, ``expired``, ``changed`` (it names
    another version or digest than what is held) or ``not_held`` (it waits for nobody's answer).
    """

    def __init__(self, effect: str, answer: str) -> None:
        super().__init__(f"effect {effect!r}: {_REFUSED.get(answer, answer)}")
        self.effect = effect
        self.problem = answer


class ResolutionRefused(RequestRefused):
    """A person's word on an effect that changed nothing; ``state`` is the effect's.

    ``problem`` is ``already_resolved`` (another word came first) or ``not_resolvable`` (the state doesn't
    allow this one, or doesn't yet).
    """

    def __init__(self, effect: str, problem: str, state: str, reason: str) -> None:
        super().__init__(f"effect {effect!r} is {state!r}: {reason}")
        self.effect = effect
        self.problem = problem
        self.state = state


class NotFound(RequestRefused):
    """No such thing, or somebody else's: the two can't be told apart."""

    problem = "not_found"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name!r}")
        self.kind = kind
        self.name = name


class KeyConflict(TurnSagaError):
    """An idempotency key that stands for other arguments already; nothing was prepared under it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key {key!r} stands for other arguments; use a key of its own for this call")
        self.key = key


class IllegalTransition(TurnSagaError):
    """A pair of state and event that the transition table doesn't have."""

    def __init__(self, subject: str, state: str | None, event: str) -> None:
        super().__init__(f"{subject}: {str(event)!r} can't happen in state {str(state or 'none')!r}")
        self.subject = subject
        self.state = state
        self.event = event


class StoreError(TurnSagaError):
    """The ledger couldn't do what it was asked."""


class StoreUnavailable(StoreError):
    """The database doesn't answer; the same call may be made again."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"the ledger at {where!r} doesn't answer ({reason}); it is tried again until it does"
        )
        self.where = where
        self.reason = reason


class StoreBusy(StoreUnavailable):
    """The database answers and refuses, or nothing is free to ask it; the same call may be made again."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        StoreError.__init__(self, f"the ledger at {where!r} is busy ({reason}); {remedy}")
        self.where = where
        self.reason = reason
        self.remedy = remedy


class StoreUnusable(StoreError):
    """The database answers, and can't be used as this version's ledger; asking again doesn't help."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the ledger at {where!r} can't be used: {reason}")
        self.where = where
        self.reason = reason


class StaleWrite(StoreError):
    """Another attempt holds the claim on this effect; nothing was written."""

    def __init__(self, effect: str, token: int) -> None:
        super().__init__(f"claim {token} on effect {effect!r} is stale")
        self.effect = effect
        self.token = token


class StaleStep(StoreError):
    """A newer attempt of this model request writes its reply; nothing was written."""

    def __init__(self, turn: str, step: int) -> None:
        super().__init__(f"a newer attempt writes step {step} of turn {turn!r}; this one's text isn't taken")
        self.turn = turn
        self.step = step


class EngineMisconfigured(TurnSagaError):
    """Temporal can't be reached by what we are told, now or later; ``where`` names what has to change."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"Temporal can't be reached as configured by {where}: {reason}")
        self.where = where
        self.reason = reason


class EngineUnavailable(TurnSagaError):
    """Temporal doesn't answer. ``done`` says what is recorded all the same."""

    def __init__(self, address: str, reason: str, done: str) -> None:
        super().__init__(f"Temporal at {address!r} doesn't answer ({reason}); {done}")
        self.address = address
        self.reason = reason
        self.done = done


class ModelUnavailable(TurnSagaError):
    """The model gave no usable reply; ``retryable`` says whether asking again may help."""

    def __init__(self, model: str, reason: str, *, retryable: bool) -> None:
        super().__init__(f"model {model!r} gave no usable reply: {reason}")
        self.model = model
        self.reason = reason
        self.retryable = retryable


class ToolOutcome(TurnSagaError):
    """What a tool's function says by raising; ``reason`` is shown to people and to the model.

    Keep credentials, headers and bodies out of ``reason``: it is stored and shown.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotApplied(ToolOutcome):
    """The effect is proved not applied by this attempt: refused, invalid, or never sent."""


class StillRunning(ToolOutcome):
    """The vendor is still at this very key (a 409 "in progress"): ask again, nothing is decided."""


class OutcomeUnknown(ToolOutcome):
    """The commit was sent and no answer proves anything; what a tool raises unasked counts as this.

    ``final`` says that the same request would only get the same answer (a stored 500, a key that is known
    with another body): it isn't sent again, but asked about.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class UndoRefused(ToolOutcome):
    """The undo can't be done, now or later: a person is needed."""


class ChangedSince(ToolOutcome):
    """Somebody changed the object since; undo would overwrite that, so the effect stands."""
