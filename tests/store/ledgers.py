"""Short ways to what tests of the ledger do again and again."""

from datetime import UTC, datetime, timedelta
from typing import Any

from turnsaga.keys import digest, effect_key
from turnsaga.ledger import State
from turnsaga.models import CallPlan, CallRef, EffectRef, FenceRequest, Principal, StepRef, TurnRef
from turnsaga.settle import OnUnknown
from turnsaga.store import (
    Claim,
    CommitOutcome,
    EffectRow,
    NewCall,
    NewEffect,
    NewReply,
    NewTurn,
    Refreshed,
    SqlStore,
    UndoClaim,
    Verdict,
)
from turnsaga.tools import CommitPolicy, Policy

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
ADA = Principal(tenant="acme", user="ada")
BOB = Principal(tenant="acme", user="bob")
EVE = Principal(tenant="other", user="ada")
APPLIED = CommitOutcome(applied=True, receipt={"id": "r"}, result={"ok": True})
LOST = CommitOutcome(applied=None, error="no answer")
REFUSED = CommitOutcome(applied=False, error="declined")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Ledger:
    """A store with short ways to what tests do again and again."""

    def __init__(self, store: SqlStore, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._turns = 0

    async def turn(self, *, calls: int = 1, who: Principal = ADA, conversation: str | None = None) -> TurnRef:
        """Start a turn whose first reply asks for so many effects."""
        self._turns += 1
        started = await self.store.start_turn(
            new_turn(who, conversation or f"c{self._turns}", f"k{self._turns}")
        )
        reply = NewReply(
            text="hi",
            finish="tool_call",
            input_tokens=1,
            output_tokens=1,
            calls=tuple(
                NewCall(call_id=f"c{n}", tool="note", arguments="{}", kind="effect") for n in range(calls)
            ),
        )
        assert await self.store.record_reply(self.step(started.ref), reply)
        return started.ref

    @staticmethod
    def step(ref: TurnRef) -> StepRef:
        return StepRef(tenant=ref.tenant, turn=ref.turn, step=1)

    @staticmethod
    def call(ref: TurnRef, index: int = 0) -> CallRef:
        return CallRef(tenant=ref.tenant, turn=ref.turn, step=1, index=index)

    async def claim(self, ref: TurnRef, index: int = 0, **declared: Any) -> Claim:
        return await self.store.claim_commit(self.call(ref, index), new_effect(ref, index, **declared))

    async def claim_anew(self, ref: TurnRef, index: int = 0, **changes: Any) -> Claim:
        """Claim an effect that the gate found outdated, prepared anew."""
        fields: dict[str, Any] = {"request": {"n": index}, "shown_digest": "anew", "read_version": None}
        refreshed = Refreshed(**{**fields, **changes})
        return await self.store.claim_commit(self.call(ref, index), None, refreshed=refreshed)

    async def commit(self, ref: TurnRef, index: int = 0, **declared: Any) -> EffectRef:
        claim = await self.claim(ref, index, **declared)
        assert claim.row is not None
        assert claim.verdict is Verdict.SEND
        await self.store.record_commit(claim.row.ref, claim.row.token, APPLIED)
        return claim.row.ref

    async def fence(self, ref: TurnRef, cause: str = "abort") -> Any:
        return await self.store.fence(
            FenceRequest.model_validate(
                {"tenant": ref.tenant, "turn": ref.turn, "cause": cause, "via": "api"}
            )
        )

    async def state(self, effect: EffectRef) -> State:
        return (await self.store.load_effect(effect)).state

    async def kinds(self, ref: TurnRef, who: Principal = ADA) -> list[str]:
        page = await self.store.event_page(who, ref.turn, after=0)
        assert [event.number for event in page.events] == list(range(1, len(page.events) + 1))
        return [event.kind for event in page.events]


def undo_claim(claim: UndoClaim) -> tuple[EffectRow, bool]:
    """Return the row of a claim, and whether the undo may be sent."""
    return claim.row, claim.sends


def new_turn(who: Principal, conversation: str, key: str, *, message: str = "hello") -> NewTurn:
    return NewTurn(
        principal=who,
        conversation=conversation,
        start_key=key,
        message=message,
        model="script",
        model_asked="script",
        policies={},
        deadline_ms=None,
        nonce=f"nonce-{who.tenant}-{who.user}-{key}",
    )


def new_effect(ref: TurnRef, index: int, **declared: Any) -> NewEffect:
    arguments = declared.pop("arguments", {"n": index})
    fields: dict[str, Any] = {
        "tool": "note",
        "system": "fake",
        "identity": f"{ref.turn}/{index}",
        "arguments": arguments,
        "arguments_digest": digest(arguments),
        "occurrence": 1,
        "key": effect_key(
            tool="note", arguments=arguments, tenant=ref.tenant, user="ada", nonce=ref.turn, occurrence=1
        ),
        "request": arguments,
        "resources": (),
        "plan": CallPlan(
            index=index, tool="note", kind="effect", summary=f"note {index}", attempt_ms=1, total_ms=1
        ),
        "policy": Policy(CommitPolicy.IMMEDIATE),
        "confirm": timedelta(minutes=10),
        "shown_digest": digest({"arguments": arguments}),
        "read_version": None,
        "reversible": True,
        "keyed": True,
        "can_look_up": True,
        "can_check_undone": False,
        "on_unknown": OnUnknown.RESOLVE,
        "halts": False,
        "key_dies_with_undo": False,
        "undo_keyed": True,
        "key_life_ms": 3_600_000,
        "send_by_ms": 5_000,
        "landing_ms": 10_000,
        "max_sends": 3,
        "max_undo_sends": 2,
        "title": f"note {index}",
        "no_undo_reason": None,
    }
    return NewEffect(**{**fields, **declared})
