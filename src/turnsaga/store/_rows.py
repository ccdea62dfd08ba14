"""Rows of the ledger as typed values, and the views that are made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Row as SqlRow

from turnsaga import settle
from turnsaga.ledger import IN_DOUBT, OPEN_TURN, State, TurnState
from turnsaga.models import CallPlan, EffectBrief, EffectRef, EffectView, HeldFor, Settlement
from turnsaga.settle import OnUnknown
from turnsaga.store._prepared import Row

__all__ = [
    "EffectRow",
    "TurnRow",
    "brief",
    "changed",
    "effect_row",
    "note",
    "plan_row",
    "settlement",
    "turn_row",
    "view",
]


@dataclass(frozen=True, kw_only=True)
class TurnRow:
    """One row of ``turns``."""

    tenant: str
    turn: str
    user: str
    conversation: str
    position: int
    start_digest: str
    state: TurnState
    nonce: str
    message: str
    model: str
    policies: str
    deadline_ms: int | None
    fence: datetime | None
    fence_cause: str | None
    fence_via: str | None
    fence_by: str | None
    seen: int | None
    reason: str | None
    writer: str | None
    next_event: int
    next_order: int
    next_seq: int
    follow: bool
    created_at: datetime
    begun_at: datetime | None
    ended_at: datetime | None

    @property
    def fenced(self) -> bool:
        """True once no gate of this turn opens any more."""
        return self.fence is not None


@dataclass(frozen=True, kw_only=True)
class EffectRow:
    """One row of ``effects``."""

    tenant: str
    effect: str
    turn: str
    user: str
    conversation: str
    seq: int
    step: int
    call: int
    tool: str
    system: str
    identity: str | None
    arguments: str
    arguments_digest: str
    occurrence: int
    key: str
    undo_key: str
    request: str
    receipt: str | None
    result: str | None
    evidence: str | None
    plan: str
    policy: str
    delay_ms: int
    shown_digest: str
    read_version: str | None
    reversible: bool
    keyed: bool
    can_look_up: bool
    can_check_undone: bool
    on_unknown: OnUnknown
    halts: bool
    key_dies_with_undo: bool
    undo_keyed: bool
    key_life_ms: int | None
    send_by_ms: int
    landing_ms: int
    max_sends: int
    max_undo_sends: int
    title: str
    no_undo_reason: str | None
    state: State
    version: int
    token: int
    held_for: HeldFor | None
    expires_at: datetime | None
    not_before: datetime | None
    decision: str | None
    decided_at: datetime | None
    decided_by: str | None
    decided_via: str | None
    decided_version: int | None
    resolution: str | None
    error: str | None
    owned: bool
    commit_order: int | None
    sends: int
    answers: int
    first_claim_at: datetime | None
    send_by: datetime | None
    undo_sends: int
    undo_refusals: int
    undo_send_by: datetime | None
    prepared_at: datetime
    at: datetime

    @property
    def ref(self) -> EffectRef:
        """Return the effect's name."""
        return EffectRef(tenant=self.tenant, turn=self.turn, effect=self.effect)

    @property
    def call_plan(self) -> CallPlan:
        """Return how the tool's calls are run, as declared when the effect was prepared."""
        return _read_plan(self.plan)

    @property
    def summary(self) -> str:
        """The effect as a sentence that a workflow's history may keep."""
        return self.call_plan.summary

    @property
    def held_until(self) -> datetime | None:
        """When a held effect is to be looked at again, if nobody answers; None if it isn't known."""
        if self.held_for == "confirmation":
            return self.expires_at
        return self.not_before if self.held_for == "delay" else None

    @property
    def needs_attention(self) -> bool:
        """True while a person is needed; ``schema.NEEDS_ATTENTION`` says the same to the database."""
        return self.state is State.COMPENSATION_FAILED or (self.owned and self.state in IN_DOUBT)

    @property
    def unanswered(self) -> int:
        """How many requests were claimed to be sent and never answered."""
        return self.sends - self.answers

    @property
    def wire_until(self) -> datetime | None:
        """The instant from which on no unanswered request can land; None if all were answered."""
        if self.send_by is None or self.unanswered <= 0:
            return None
        return self.send_by + timedelta(milliseconds=self.landing_ms)

    @property
    def undo_wire_until(self) -> datetime | None:
        """The instant from which on no unanswered undo can land; None if all were answered."""
        if self.undo_send_by is None or self.undo_sends <= self.undo_refusals:
            return None
        return self.undo_send_by + timedelta(milliseconds=self.landing_ms)

    @property
    def undone_unasked(self) -> bool:
        """True while its tool wants it undone although nobody knows whether it was done."""
        return (
            self.on_unknown is OnUnknown.COMPENSATE
            and not self.owned
            and (
                self.state in {State.COMMITTING, State.UNKNOWN}
                or (self.state is State.COMPENSATING and self.commit_order is None)
            )
        )

    @property
    def key_until(self) -> datetime | None:
        """The last instant at which a keyed request may be sent again.

        It must land while the vendor still remembers the key: past that, the same request is a new one.
        """
        if self.key_life_ms is None or self.first_claim_at is None:
            return None
        return self.first_claim_at + timedelta(
            milliseconds=self.key_life_ms - self.send_by_ms - self.landing_ms
        )


@lru_cache(maxsize=1024)
def _read_plan(written: str) -> CallPlan:
    return CallPlan.model_validate_json(written)


R = TypeVar("R", TurnRow, EffectRow)


def turn_row(row: Row | SqlRow[Any]) -> TurnRow:
    """Return the typed form of a row of ``turns``."""
    values = _named(row)
    return _made(TurnRow, values, state=TurnState(values["state"]))


def effect_row(row: Row | SqlRow[Any]) -> EffectRow:
    """Return the typed form of a row of ``effects``."""
    values = _named(row)
    made = _made(EffectRow, values, state=State(values["state"]), on_unknown=OnUnknown(values["on_unknown"]))
    # Who acknowledged it when is for lists of what needs a person alone.
    made.__dict__.pop("acknowledged_at", None)
    return made


def changed(row: R, changes: Mapping[str, Any]) -> R:
    """Return a row with some of its values changed."""
    return _made(type(row), vars(row), **changes)


def _made(kind: type[R], values: Mapping[str, Any], **others: Any) -> R:  # noqa: ANN401  # any column's value
    # What a frozen dataclass does by itself is a call for each of fifty columns.
    row = object.__new__(kind)
    row.__dict__.update(values, **others)
    return row


def _named(row: Row | SqlRow[Any]) -> Mapping[str, Any]:
    if isinstance(row, Row):
        return vars(row)
    values: Mapping[str, Any] = cast("Any", row._mapping)  # noqa: SLF001  # SQLAlchemy's public name for it
    return values


def plan_row(row: EffectRow, *, undo_given_up: bool) -> settle.Row:
    """Return what the pure plan needs to know of an effect."""
    return settle.Row(
        effect=row.effect,
        state=row.state,
        seq=row.seq,
        order=row.commit_order,
        owned=row.owned,
        reversible=row.reversible,
        keyed=row.keyed,
        can_look_up=row.can_look_up,
        on_unknown=row.on_unknown,
        halts=row.halts,
        key_dies_with_undo=row.key_dies_with_undo,
        undo_given_up=undo_given_up,
        wire_until=row.wire_until,
        key_until=row.key_until,
        sends_left=row.max_sends - row.sends,
    )


_SAID: Final[dict[State, str]] = {
    State.PREPARED: "prepared, not sent",
    State.RELEASED: "not done",
    State.COMMITTING: "being done",
    State.ACCEPTED: "accepted, not finished",
    State.COMMITTED: "done",
    State.FAILED: "not done: it failed",
    State.UNKNOWN: "outcome not known yet",
    State.COMPENSATING: "being undone",
    State.COMPENSATED: "undone",
    State.COMPENSATION_FAILED: "done, and could not be undone: a person is needed",
    State.STANDING: "done, and stands",
}


_WAITS: Final[dict[HeldFor, str]] = {
    "confirmation": "waits for your confirmation",
    "turn_end": "takes effect when this turn ends",
    "delay": "takes effect in a moment",
    "resource": "waits for another effect",
    "viewer": "waits until somebody is here",
}


_LEFT_BY_A_PERSON: Final = "a person looked, and left it standing"


def _said(row: EffectRow) -> str:
    if row.state is State.COMMITTED and row.owned:
        return "done, and its undo waits for a person"
    if row.held_for is None or row.held_for == "resource":
        return _SAID[row.state]
    return _WAITS[row.held_for]


def note(row: EffectRow) -> str | None:
    """Return why the effect is as it is, in words, where there is more to say than its state."""
    if row.error:
        return row.error
    if row.state is State.PREPARED and row.held_for is not None:
        return _WAITS[row.held_for]
    if row.state is not State.STANDING:
        return None
    # What an operator wrote is in the ledger, and stays out of workflows' histories.
    return _LEFT_BY_A_PERSON if row.resolution == "stands" else row.no_undo_reason


def brief(row: EffectRow, *, now: datetime | None = None) -> EffectBrief:
    """Return what a workflow may remember of an effect; with ``now`` also how long it is held."""
    until = row.held_until
    return EffectBrief(
        effect=row.effect,
        tool=row.tool,
        summary=row.summary,
        state=row.state,
        order=row.commit_order,
        note=note(row),
        held_for=row.held_for,
        wait_ms=None if now is None or until is None else _whole_ms(until - now),
    )


def _whole_ms(span: timedelta) -> int:
    """Return a wait in milliseconds that is over once the span is."""
    return max(0, span // timedelta(milliseconds=1)) + 1


def view(row: EffectRow) -> EffectView:
    """Return the effect as people and clients see it."""
    return EffectView(
        effect=row.effect,
        turn=row.turn,
        conversation=row.conversation,
        tool=row.tool,
        identity=row.identity,
        key=row.key,
        title=row.title,
        summary=f"{row.title}: {_said(row)}",
        state=row.state,
        held_for=row.held_for,
        needs_attention=row.needs_attention,
        digest=row.shown_digest,
        expires_at=row.expires_at if row.held_for == "confirmation" else None,
        undo=None,
        no_undo_reason=_no_undo_reason(row),
        error=row.error,
        version=row.version,
        order=row.commit_order,
        at=row.at,
    )


def _no_undo_reason(row: EffectRow) -> str | None:
    if row.no_undo_reason is not None:
        return row.no_undo_reason
    if row.state is State.COMMITTED and row.owned:
        return row.error
    if row.state is State.COMMITTED:
        return "it is undone with its turn: stop the turn while it runs"
    return None


def settlement(turn: TurnRow, rows: Sequence[EffectRow]) -> Settlement | None:
    """Return what became of every effect of a turn, or None while it hasn't ended."""
    if turn.state in OPEN_TURN or turn.ended_at is None:
        return None
    lists: dict[str, list[str]] = {}
    for row in rows:
        lists.setdefault(row.state.value, []).append(row.effect)
    named = {name: tuple(ids) for name, ids in lists.items() if name in Settlement.model_fields}
    return Settlement(at=turn.ended_at, **named)
