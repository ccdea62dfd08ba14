"""The ledger: every question and every change, each one whole transaction.

This is the only module that others use of the store; the functions behind it take a connection, so that
a transaction is written as plain code and read from top to bottom.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from alembic.util import CommandError
from sqlalchemy.exc import DatabaseError

from turnsaga.errors import StoreUnavailable, StoreUnusable
from turnsaga.ledger import TurnState
from turnsaga.models import (
    CallRef,
    Decision,
    EffectRef,
    EffectView,
    FenceAnswer,
    FenceRequest,
    NextSteps,
    Principal,
    Ruling,
    StepRef,
    TurnRef,
    TurnView,
)
from turnsaga.store import (
    _attention,
    _commits,
    _deployment,
    _gate,
    _handing,
    _holding,
    _preparing,
    _queue,
    _replies,
    _settling,
    _streaming,
    _turns,
    _undoing,
    _views,
)
from turnsaga.store._engine import Database
from turnsaga.store._rows import EffectRow
from turnsaga.store.migrations import migrate
from turnsaga.tools import ToolCard

__all__ = ["SqlStore"]


def _utc_now() -> datetime:
    return datetime.now(UTC)


class SqlStore:
    """The ledger in a SQL database. One instance a process; ``open`` before the first use.

    ``connections`` bounds the pool on Postgres; SQLite has one.

    Every method may raise ``StoreUnavailable`` once the database has not answered for some seconds, and the
    same call may be made again. Nothing was written then, unless the answer to its COMMIT is what was lost.
    """

    def __init__(self, url: str, *, connections: int = 4, clock: Callable[[], datetime] = _utc_now) -> None:
        self._database = Database(url, connections=connections)
        self._clock = clock

    @property
    def where(self) -> str:
        """The database's address without its password."""
        return self._database.where

    async def open(self, *, patience_s: float = 0.0) -> None:
        """Bring the schema to this version's revision, waiting up to ``patience_s`` for the database.

        Raises:
            StoreUnavailable: it didn't answer.
            StoreUnusable: it isn't a ledger, or one of a newer version.
        """
        give_up = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                await self._database.migrate(migrate)
            except StoreUnavailable:
                if asyncio.get_running_loop().time() >= give_up:
                    raise
            except CommandError as error:
                raise StoreUnusable(self.where, str(error)) from error
            except DatabaseError as error:
                raise StoreUnusable(self.where, str(error.orig)) from error
            else:
                return

    async def close(self) -> None:
        """Wait for what is under way, then let the database go."""
        await self._database.close()

    # Turns

    async def start_turn(self, new: _turns.NewTurn) -> _turns.Started:
        """Insert a turn, or return the one that the same start began. See ``_turns.start``."""
        return await self._database.write(_turns.start, new, now=self._clock())

    async def fence(self, request: FenceRequest, *, owner: Principal | None = None) -> FenceAnswer:
        """Write the turn's fence if it runs; the first one counts. ``owner`` must be its owner."""
        return await self._database.write(_settling.fence, request, owner=owner, now=self._clock())

    async def complete_turn(self, ref: TurnRef) -> NextSteps:
        """Complete the turn unless it is fenced or has effects in doubt."""
        return await self._database.write(_turns.complete, ref, now=self._clock())

    async def enter_turn(self, ref: TurnRef) -> TurnState:
        """Let a queued turn begin if its conversation is free and it is next; return where it stands."""
        return await self._database.write(_queue.enter, ref, now=self._clock())

    async def undecided(self, ref: CallRef) -> NextSteps:
        """Return what has to be done about a call's effect that is in doubt, once nothing works on it."""
        return await self._database.write(_turns.undecided, ref, now=self._clock())

    async def next_steps(
        self, ref: TurnRef, *, given_up: Collection[str] = (), fence: FenceRequest | None = None
    ) -> NextSteps:
        """Settle what needs no call, and return what does; closes the turn when nothing is left.

        ``fence`` is written first, in the same transaction.
        """
        return await self._database.write(
            _settling.next_steps, ref, given_up=given_up, fence=fence, now=self._clock()
        )

    async def owned_steps(self, ref: TurnRef) -> NextSteps:
        """Return what can be asked again about effects that were handed over."""
        return await self._database.read(_settling.owned_steps, ref)

    # The deployment

    async def write_tool_cards(self, cards: Mapping[str, ToolCard]) -> None:
        """Put these tools in place of those that the ledger knew."""
        await self._database.write(_deployment.write_tool_cards, cards, now=self._clock())

    async def tool_cards(self) -> dict[str, ToolCard]:
        """Return the tools that workers have, by name."""
        return await self._database.read(_deployment.tool_cards)

    async def engine(self) -> _deployment.EngineName | None:
        """Return the Temporal that this ledger belongs to."""
        return await self._database.read(_deployment.engine)

    async def set_engine(self, name: _deployment.EngineName) -> None:
        """Make this the Temporal that the ledger belongs to."""
        await self._database.write(_deployment.set_engine, name, now=self._clock())

    async def turns_to_sweep(self, *, before: datetime, limit: int) -> tuple[_deployment.OpenTurn, ...]:
        """Return turns that may need a recovery, oldest first."""
        return await self._database.read(_deployment.turns_to_sweep, before=before, limit=limit)

    async def answered_effects(self, ref: TurnRef, *, before: datetime) -> tuple[str, ...]:
        """Return the effects whose answers a turn's run may not have heard of."""
        return await self._database.read(_deployment.answered_effects, ref, before=before)

    # Replies

    async def step_context(self, ref: StepRef) -> _replies.StepContext:
        """Return what one model request needs; the first one of a turn notes that the turn has begun."""
        # Only the first one writes; the others needn't wait for those who do.
        ask = self._database.write if ref.step == 1 else self._database.read
        return await ask(_replies.step_context, ref, now=self._clock())

    async def append_text(self, ref: StepRef, text: str, *, by: _streaming.Writer | None = None) -> bool:
        """Add text to the turn's events; False once the turn is fenced."""
        return await self._database.write(_streaming.append_text, ref, text, by=by, now=self._clock())

    async def restart_step(self, ref: StepRef, attempt: int, *, by: _streaming.Writer | None = None) -> bool:
        """Say that this step's text so far is void; False once the turn is fenced."""
        return await self._database.write(_streaming.restart_step, ref, attempt, by=by, now=self._clock())

    async def record_reply(
        self, ref: StepRef, reply: _replies.NewReply, *, by: _streaming.Writer | None = None
    ) -> _replies.StoredReply | None:
        """Store a whole reply, and return it; None once the turn is fenced."""
        return await self._database.write(_replies.record_reply, ref, reply, by=by, now=self._clock())

    async def record_result(self, ref: CallRef, result: object, *, is_error: bool) -> None:
        """Store the result of a call that has no effect; the first one stays."""
        await self._database.write(_replies.record_result, ref, result, is_error=is_error, now=self._clock())

    # Effects

    async def call_context(self, ref: CallRef) -> _preparing.CallContext:
        """Return a stored call."""
        return await self._database.read(_preparing.call_context, ref)

    async def claim_commit(
        self,
        ref: CallRef,
        new: _preparing.NewEffect | None,
        *,
        gate: bool = True,
        refreshed: _gate.Refreshed | None = None,
    ) -> _gate.Claim:
        """Prepare the call's effect if it has none yet, and open the gate, unless it is to stay shut."""
        return await self._database.write(
            _gate.claim_commit, ref, new, gate=gate, refreshed=refreshed, now=self._clock()
        )

    async def draft_and_claim(
        self,
        ref: CallRef,
        draft: Callable[[_preparing.CallContext], _preparing.NewEffect],
        *,
        gate: bool = True,
    ) -> _gate.Claim:
        """As ``call_context`` and ``claim_commit`` in one, for an effect that is drafted without waiting."""
        return await self._database.write(_gate.draft_and_claim, ref, draft, gate=gate, now=self._clock())

    async def due(self, ref: EffectRef, *, turn_ended: bool) -> tuple[EffectRow, bool]:
        """Let a held effect go on whose wait is over; the second value tells that its turn is fenced."""
        return await self._database.write(_holding.due, ref, turn_ended=turn_ended, now=self._clock())

    async def decide(
        self, decision: Decision, *, owner: Principal | None = None, turn: str | None = None
    ) -> _holding.DecisionTaken:
        """Take a person's answer about a held effect, if it is the first one and still counts."""
        return await self._database.write(
            _holding.decide, decision, owner=owner, turn=turn, now=self._clock()
        )

    async def drop(self, ref: EffectRef, reason: str) -> EffectRow:
        """Release an effect that is prepared and not to be sent."""
        return await self._database.write(_commits.drop, ref, reason, now=self._clock())

    async def record_commit(
        self,
        ref: EffectRef,
        token: int,
        outcome: _commits.CommitOutcome,
        *,
        claimed: EffectRow | None = None,
    ) -> EffectRow:
        """Write what the attempt that holds ``token`` learned."""
        return await self._database.write(
            _commits.record_commit, ref, token, outcome, now=self._clock(), claimed=claimed
        )

    async def begin_lookup(self, ref: EffectRef) -> EffectRow:
        """Take the claim away from an attempt that gave no answer."""
        return await self._database.write(_commits.begin_lookup, ref, now=self._clock())

    async def record_lookup(
        self, ref: EffectRef, token: int, found: _commits.CommitOutcome | None, *, asked_at: datetime
    ) -> EffectRow:
        """Write a look-up's answer; None is "not found"."""
        return await self._database.write(
            _commits.record_lookup, ref, token, found, asked_at=asked_at, now=self._clock()
        )

    async def hand_over(self, ref: EffectRef, reason: str) -> EffectRow:
        """Show an effect in doubt as open, to be followed by somebody."""
        return await self._database.write(_handing.hand_over, ref, reason, now=self._clock())

    async def keep_open(self, ref: EffectRef, until: datetime) -> None:
        """Have it known that a commit's request can still leave until then: its call can't be stopped."""
        await self._database.write(_commits.keep_open, ref, until, now=self._clock())

    async def claim_undo(self, ref: EffectRef) -> _undoing.UndoClaim:
        """Claim an effect to undo it."""
        return await self._database.write(_undoing.claim_undo, ref, now=self._clock())

    async def deny_undo(self, ref: EffectRef, token: int, *, asked_at: datetime) -> EffectRow:
        """Write that the effect was read back and still stands."""
        return await self._database.write(
            _undoing.deny_undo, ref, token, asked_at=asked_at, now=self._clock()
        )

    async def keep_undo_open(self, ref: EffectRef, until: datetime) -> None:
        """As ``keep_open``, for an undo."""
        await self._database.write(_undoing.keep_undo_open, ref, until, now=self._clock())

    async def record_undo(
        self,
        ref: EffectRef,
        token: int,
        outcome: _settling.UndoOutcome,
        *,
        claimed: EffectRow | None = None,
    ) -> _settling.UndoRecorded:
        """Write what the undo that holds ``token`` learned, and return what is to be done then."""
        return await self._database.write(
            _settling.record_undo, ref, token, outcome, now=self._clock(), claimed=claimed
        )

    async def load_effect(self, ref: EffectRef) -> EffectRow:
        """Return an effect's row."""
        return await self._database.read(_views.load_effect, ref)

    # What needs a person, within one tenant's things

    async def attention(self, tenant: str, *, limit: int = 200) -> tuple[EffectView, ...]:
        """Return effects that need a person, those first that have waited longest."""
        return await self._database.read(_attention.attention, tenant, limit=limit)

    async def count_attention(self) -> int:
        """Return how many effects need a person, of all tenants."""
        return await self._database.read(_attention.count_attention)

    async def resolve(self, ruling: Ruling) -> _attention.RulingTaken:
        """Take a person's word on an effect that needs one."""
        return await self._database.write(_attention.resolve, ruling, now=self._clock())

    # Views, within one owner's things

    async def turn_view(self, who: Principal, turn: str) -> TurnView:
        """Return a turn with its effects and its settlement."""
        return await self._database.read(_views.turn_view, who, turn)

    async def active_turn(self, who: Principal, conversation: str) -> str | None:
        """Return the turn of a conversation that hasn't ended."""
        return await self._database.read(_views.active_turn, who, conversation)

    async def latest_turn(self, who: Principal, conversation: str) -> str | None:
        """Return the newest turn of a conversation, ended or not."""
        return await self._database.read(_views.latest_turn, who, conversation)

    async def event_page(
        self, who: Principal, turn: str, *, after: int, limit: int = 500
    ) -> _views.EventPage:
        """Return events of a turn after a number."""
        return await self._database.read(_views.event_page, who, turn, after=after, limit=limit)

    async def news_of(self, turn: str, *, within_s: float) -> None:
        """Return when the turn may have new events, or when the time is over."""
        await self._database.news_of(turn, within_s=within_s)

    async def effect_view(self, who: Principal, effect: str) -> EffectView:
        """Return one effect of this owner."""
        return await self._database.read(_views.effect_view, who, effect)

    async def effect_by_key(self, who: Principal, key: str) -> EffectView:
        """Return the effect of this owner that a key stands for."""
        return await self._database.read(_views.effect_by_key, who, key)

    async def conversation_effects(self, who: Principal, conversation: str) -> tuple[EffectView, ...]:
        """Return the effects of a conversation."""
        return await self._database.read(_views.conversation_effects, who, conversation)

    async def account_effects(self, who: Principal, *, outstanding: bool) -> tuple[EffectView, ...]:
        """Return the account's effects, or only those that its user has yet to be told of."""
        return await self._database.read(_views.outstanding, who, only=outstanding)

    async def acknowledge(self, who: Principal, effect: str) -> EffectView:
        """Note that the user has seen an effect that stands."""
        return await self._database.write(_views.acknowledge, who, effect, now=self._clock())
