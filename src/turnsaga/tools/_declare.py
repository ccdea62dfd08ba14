"""What a tool is declared with."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

__all__ = [
    "Call",
    "Committed",
    "EffectTool",
    "Found",
    "JsonObject",
    "Keyed",
    "Limits",
    "Missing",
    "Once",
    "Prepared",
    "ReadTool",
    "Repeat",
    "Running",
    "SearchResult",
    "Tool",
    "Undone",
]

A = TypeVar("A", bound=BaseModel)
JsonObject = Mapping[str, Any]


@dataclass(frozen=True)
class Keyed:
    """The downstream system honours the key: a second call within ``lifetime`` returns the first result.

    ``dies_with_undo`` is for systems whose key is the object's own id: once the object is gone, the same
    request would make it anew, so an undo waits until no request can still be under way.
    """

    lifetime: timedelta
    dies_with_undo: bool = False


@dataclass(frozen=True)
class Once:
    """The downstream system promises nothing: a call is sent once, and then asked about."""


Repeat = Keyed | Once


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The bounds of one tool's calls.

    ``send_by``: how long after its claim an attempt may still send. ``call``: one call to the system.
    ``sends``: how often a keyed request is sent at most. ``landing_window``: how long after its last
    moment of sending, or the end of its call if that is later, a request can still take effect; a
    "not found" is believed only after that.
    ``confirm``: how long the user is asked before the effect is released. ``wait``: how long a call waits
    for a busy resource. ``resolve``: how long the outcome of a lost call
    is looked for before it is handed to a person. ``undo_sends`` and ``undo_total`` bound the undo, which
    has a budget of its own.
    """

    send_by: timedelta = timedelta(seconds=5)
    call: timedelta = timedelta(seconds=30)
    sends: int = 5
    landing_window: timedelta = timedelta(seconds=30)
    confirm: timedelta = timedelta(minutes=10)
    wait: timedelta = timedelta(seconds=30)
    resolve: timedelta = timedelta(minutes=2)
    undo_call: timedelta = timedelta(seconds=30)
    undo_sends: int = 5
    undo_total: timedelta = timedelta(minutes=2)


@dataclass(frozen=True)
class Call:
    """What each of a tool's functions is told beside its request.

    ``key`` is the idempotency key to send: the effect's in a commit or look-up, the undo's in an undo.
    ``effect_key`` is always the effect's. ``remaining`` is the time that is left, a duration, since
    clocks differ. ``send_within`` is the part of it in which a commit's or an undo's request should have
    left: what takes longer to connect should give up, and say ``NotApplied``.
    """

    tenant: str
    user: str
    turn: str
    effect: str
    key: str
    effect_key: str
    remaining: timedelta
    send_within: timedelta = timedelta(seconds=5)

    def headers(self) -> dict[str, str]:
        """Return the headers that every call to a downstream system carries."""
        left = max(0, int(self.remaining.total_seconds() * 1000))
        return {"Idempotency-Key": self.key, "Turnsaga-Remaining-Ms": str(left)}


@dataclass(frozen=True)
class Prepared:
    """The exact request that will be sent, a JSON object, and the business identity that it is about.

    ``version`` is what was read of the thing that it changes: an effect that is held is refused as stale
    if ``EffectTool.current`` then says another.
    """

    request: JsonObject
    identity: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Committed:
    """The effect is applied. ``receipt`` is what undo and proof need; ``result`` is told to the model."""

    receipt: JsonObject
    result: JsonObject | str | None = None


@dataclass(frozen=True)
class Undone:
    """The effect is undone. ``evidence`` is what the system answered; an undo without any isn't believed."""

    evidence: JsonObject


@dataclass(frozen=True)
class Found:
    """A look-up found the effect applied."""

    receipt: JsonObject
    result: JsonObject | str | None = None


@dataclass(frozen=True)
class Missing:
    """A look-up found nothing. It is believed only once no request can land any more."""


@dataclass(frozen=True)
class Running:
    """A look-up learned that the system is still at it."""


SearchResult = Found | Missing | Running


@dataclass(frozen=True, kw_only=True)
class ReadTool(Generic[A]):
    """A tool that changes nothing: it may run twice, and leaves no row in the ledger of effects.

    ``read`` returns what the model is told. ``says`` is a sentence for people with the names of
    arguments in braces.
    """

    name: str
    description: str
    arguments: type[A]
    read: Callable[[A, Call], Awaitable[JsonObject | str] | JsonObject | str]
    says: str
    timeout: timedelta = timedelta(seconds=30)


@dataclass(frozen=True, kw_only=True)
class EffectTool(Generic[A]):
    """A tool that changes something outside.

    Each of its functions is a coroutine function or a plain one, which is run in a thread. Neither is torn
    by an abort. One that goes on after its time is over is left behind: its outcome counts as unknown, its
    request as one that can still land, and what it returns in the end as evidence.

    Args:
        name: ``[a-z][a-z0-9_]*``; part of activity names and of keys, so never renamed.
        description: what the model is told about the tool.
        arguments: a pydantic model; what it parses is what is keyed, stored and shown.
        system: the downstream system; business identities count per system and tenant.
        says: the effect as a sentence, the names of arguments in braces: "charge {amount} {currency}".
        summary: the same for the Temporal UI, if ``says`` names what histories shouldn't keep, such as
            a person's address.
        commit: sends the stored request; raises ``NotApplied`` or ``StillRunning`` where it knows better
            than "unknown".
        prepare: checks preconditions and returns the exact request; without it the request is the
            parsed arguments as JSON. Must change nothing outside, and may be asked again for an effect
            that had to wait for another one on the same resource.
        current: returns the version now of what ``prepare`` read, None if it is gone.
        reversible: True needs ``compensate``; False needs ``irreversible_because``.
        compensate: undoes what ``receipt`` names, and returns evidence.
        check_undone: reads back whether the effect is gone; an undo that it denies isn't believed, and one
            whose answer got lost is asked about before it is sent again.
        undo_says: the undo as a sentence.
        undo_repeat: what the system promises about a repeated undo.
        irreversible_because: why there is no undo; shown to people.
        repeat: what the system promises about a repeated commit.
        lookup: asks by the key, or by a reference that the request carries.
        on_unknown: what is done when a commit's outcome got lost: "resolve" it, by asking or by sending
            again; "compensate" it at once, with an empty receipt (only where an undo of nothing is harmless
            and also stops a request that is still under way); or leave it to a "person".
        identity: the business identity of the arguments ("INV-7"), unless ``prepare`` names it.
        resources: names of what the effect touches; effects on one resource are ordered across turns.
        repeatable: a repeat with the same arguments in one turn is a new effect rather than the same.
        commits: when its effects are committed, such as "turn_end" or "confirmed+10s"; None is
            "turn_end" for a reversible tool and "confirmed" for another.
        on_failure: what a commit that fails does to its turn: nothing, or stop it and undo the rest.
        on_undo_failure: what an undo that can't be completed does to those that come after it: nothing,
            or have them wait until a person has looked ("halt").
        limits: bounds of calls.
    """

    name: str
    description: str
    arguments: type[A]
    system: str
    says: str
    summary: str | None = None
    commit: Callable[[JsonObject, Call], Awaitable[Committed] | Committed]
    prepare: Callable[[A, Call], Awaitable[Prepared] | Prepared] | None = None
    current: Callable[[JsonObject, Call], Awaitable[str | None] | str | None] | None = None
    reversible: bool = False
    compensate: Callable[[JsonObject, JsonObject, Call], Awaitable[Undone] | Undone] | None = None
    check_undone: Callable[[JsonObject, JsonObject, Call], Awaitable[bool] | bool] | None = None
    undo_says: str | None = None
    undo_repeat: Repeat = Once()
    irreversible_because: str | None = None
    repeat: Repeat = Once()
    lookup: Callable[[JsonObject, Call], Awaitable[SearchResult] | SearchResult] | None = None
    on_unknown: Literal["resolve", "compensate", "person"] = "resolve"
    identity: Callable[[A], str] | None = None
    resources: Callable[[A], Sequence[str]] | None = None
    repeatable: bool = False
    commits: str | None = None
    on_failure: Literal["go_on", "abort_turn"] = "go_on"
    on_undo_failure: Literal["go_on", "halt"] = "go_on"
    limits: Limits = field(default_factory=Limits)

    @property
    def keyed(self) -> bool:
        """True if the downstream system honours the key of a commit."""
        return isinstance(self.repeat, Keyed)


Tool = EffectTool[Any] | ReadTool[Any]
