"""``TurnClient``: what a web tier imports to start, watch and abort turns.

It writes to the ledger first and tells Temporal then, so that what it answered is true even if the two
are torn apart: a fence that is written holds, signal or not, and a turn that is written down is started
by the sweeper if this process dies before it could.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

import structlog
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turnsaga import names
from turnsaga.connecting import connection_fault
from turnsaga.errors import (
    DecisionRefused,
    EngineUnavailable,
    InvalidRequest,
    PolicyLoosened,
    ResolutionRefused,
)
from turnsaga.ledger import OPEN_TURN, State, TurnState
from turnsaga.models import (
    AbortSignal,
    Decision,
    EffectView,
    FenceRequest,
    Nudge,
    Principal,
    Ruling,
    RulingWord,
    TurnEvent,
    TurnStart,
    TurnView,
)
from turnsaga.starting import start_turn_workflow
from turnsaga.store import NewTurn, SqlStore, Started, view
from turnsaga.tools import Policy, check_policies, loosened

__all__ = ["MAX_MESSAGE", "Aborted", "Answered", "OnBusy", "TurnClient"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
# For the call as a whole: the connecting of a lazy client has no bound of its own.
_RPC: Final = timedelta(seconds=5)
_HEALTH: Final = timedelta(seconds=2)
# An abort is true once its fence is written; its answer doesn't wait long for Temporal.
_SIGNAL: Final = timedelta(seconds=2)
_GLANCE_S: Final = 0.5
# How long the answer to a confirmation waits for the effect's gate.
_GATE_S: Final = 2.0
OnBusy = Literal["refuse", "queue", "abort"]
"""What a start does while another turn of its conversation runs."""
MAX_MESSAGE: Final = 512 * 1024
"""Characters that one user message may have."""


@dataclass(frozen=True)
class Aborted:
    """The answer to an abort. ``first`` tells that this call is the one that stopped the turn."""

    turn: str
    state: TurnState
    first: bool


@dataclass(frozen=True)
class Answered:
    """A person's answer that counts. ``first`` tells that this call is the one that decided."""

    effect: EffectView
    first: bool


class TurnClient:
    """Starts, watches and aborts turns for their owners.

    Every method takes the principal that acts; what belongs to somebody else is answered like what
    doesn't exist, and nothing is written before that check.
    """

    def __init__(
        self,
        temporal: Client,
        store: SqlStore,
        *,
        task_queue: str = names.TASK_QUEUE,
        default_model: str = "script",
        via: str = "api",
    ) -> None:
        self._temporal = temporal
        self._store = store
        self._task_queue = task_queue
        self._default_model = default_model
        self._via = via

    @property
    def store(self) -> SqlStore:
        """The ledger, for views that need no Temporal."""
        return self._store

    async def start(
        self,
        who: Principal,
        conversation: str,
        *,
        message: str,
        start_key: str,
        model: str | None = None,
        policies: Mapping[str, str] | None = None,
        deadline_ms: int | None = None,
        on_busy: OnBusy = "refuse",
        may_loosen: bool = True,
    ) -> Started:
        """Start a turn. The same ``start_key`` with the same body is the same turn, however often.

        Without ``model`` the client's default is asked. While another turn of the conversation runs,
        ``on_busy`` refuses the start, queues the turn behind it, or aborts that one and queues this.
        Unless it ``may_loosen``, a start can only make the deployment's policies stricter.

        Raises:
            InvalidRequest: a field is wrong.
            PolicyRefused: a policy that isn't available.
            PolicyLoosened: one that is looser than the deployment's, and may not be.
            StartConflict: the key was used with another body.
            TurnInProgress: the conversation has a turn that hasn't ended.
            EngineUnavailable: the turn is recorded and starts once Temporal answers; asking again is safe.
            StoreUnavailable: nothing was recorded.
        """
        _check_name("conversation", conversation)
        _check_name("Idempotency-Key", start_key)
        if len(message) > MAX_MESSAGE:
            raise InvalidRequest("message", f"longer than {MAX_MESSAGE} characters")
        if deadline_ms is not None and not 1 <= deadline_ms <= 24 * 3600 * 1000:
            raise InvalidRequest("deadline_ms", "must be from 1 to 86400000 (a day)")
        checked = await self._checked(policies or {}, may_loosen=may_loosen)
        started = await self._store.start_turn(
            NewTurn(
                principal=who,
                conversation=conversation,
                start_key=start_key,
                message=message,
                model=model or self._default_model,
                model_asked=model,
                policies={name: str(policy) for name, policy in checked.items()},
                deadline_ms=deadline_ms,
                nonce=secrets.token_hex(16),
                on_busy=on_busy,
            )
        )
        if started.aborted is not None:
            await self._signal(started.aborted, names.ABORT, AbortSignal())
        if started.state in OPEN_TURN:
            await self._start_workflow(started)
        return started

    async def _checked(self, policies: Mapping[str, str], *, may_loosen: bool) -> Mapping[str, Policy]:
        if not policies:
            return {}
        cards = await self._store.tool_cards()
        checked = check_policies(cards, policies)
        if not may_loosen:
            for name in loosened(cards, checked):
                raise PolicyLoosened(name, policies[name], cards[name].commits or "")
        return checked

    async def _start_workflow(self, started: Started) -> None:
        start = TurnStart(
            tenant=started.ref.tenant,
            turn=started.ref.turn,
            conversation=started.conversation,
            deadline_ms=started.deadline_ms,
            queued=started.state is TurnState.QUEUED,
        )
        try:
            async with asyncio.timeout(_RPC.total_seconds()):
                await start_turn_workflow(
                    self._temporal,
                    start,
                    task_queue=self._task_queue,
                    aborted=started.state not in {TurnState.RUNNING, TurnState.QUEUED},
                    rpc_timeout=_RPC,
                )
        except (RPCError, RuntimeError, TimeoutError) as error:
            raise EngineUnavailable(
                self._temporal.service_client.config.target_host,
                _reason(error),
                f"turn {started.ref.turn!r} is recorded and starts once Temporal answers",
            ) from error

    async def abort(
        self, who: Principal, turn: str, *, reason: str | None = None, seen: int | None = None
    ) -> Aborted:
        """Stop a turn: once this returns, no gate of it opens and it can't complete.

        The first abort counts; on a turn that is settling or has ended this changes nothing and answers
        its state. If Temporal can't be told now, the fence holds all the same: the run meets it at its
        next step, and the sweeper tells it.

        Raises:
            NotFound: no such turn, or somebody else's.
            StoreUnavailable: nothing was recorded; ask again.
        """
        by = f"{who.tenant}/{who.user}"
        fenced = await self._store.fence(
            FenceRequest.model_validate(
                {
                    "tenant": who.tenant,
                    "turn": turn,
                    "cause": "abort",
                    "via": self._via,
                    "reason": reason,
                    "by": by,
                    "seen": seen,
                }
            ),
            owner=who,
        )
        if fenced.state in OPEN_TURN:
            # By reference only: who asked and why is in the ledger, and stays out of histories.
            await self._signal(turn, names.ABORT, AbortSignal(next=fenced.next))
        return Aborted(turn, fenced.state, fenced.first)

    async def confirm(self, who: Principal, effect: str, *, version: int, digest: str) -> Answered:
        """Confirm an effect that is held for it: exactly the version that was shown, by its digest.

        The first answer counts, from whatever tab or device it comes; the same one again is accepted
        again. Once this returns, the answer holds, also if Temporal can't be told now.

        Raises:
            DecisionRefused: it changed nothing, and says why.
            NotFound: no such effect, or somebody else's.
            StoreUnavailable: nothing was recorded; ask again.
        """
        answered = await self._answer(who, effect, confirmed=True, version=version, digest=digest)
        # An abort may still come before the gate; the answer is to say which of the two it was.
        view = await self._past_gate(who, answered.effect)
        if view.state is State.RELEASED and await self._is_fenced(who, view.turn):
            raise DecisionRefused(effect, "turn_aborted")
        return Answered(view, answered.first)

    async def reject(self, who: Principal, effect: str, *, version: int, digest: str) -> Answered:
        """Reject an effect that is held for confirmation: it is released at once. See ``confirm``.

        Raises:
            DecisionRefused: it changed nothing, and says why.
            NotFound: no such effect, or somebody else's.
            StoreUnavailable: nothing was recorded; ask again.
        """
        return await self._answer(who, effect, confirmed=False, version=version, digest=digest)

    async def _answer(
        self, who: Principal, effect: str, *, confirmed: bool, version: int, digest: str
    ) -> Answered:
        decision = Decision(
            tenant=who.tenant,
            effect=effect,
            confirmed=confirmed,
            version=version,
            digest=digest,
            by=f"{who.tenant}/{who.user}",
            via="api",
        )
        taken = await self._store.decide(decision, owner=who)
        if taken.answer != "accepted":
            raise DecisionRefused(effect, taken.answer)
        # Again also for a repeated answer: the first one's signal may have been lost.
        await self._signal(taken.row.turn, names.DECIDED, Nudge(effect=effect))
        return Answered(view(taken.row), taken.first)

    async def _is_fenced(self, who: Principal, turn: str) -> bool:
        state = (await self._store.turn_view(who, turn)).state
        return state not in {TurnState.QUEUED, TurnState.RUNNING, TurnState.COMPLETED}

    async def _past_gate(self, who: Principal, shown: EffectView) -> EffectView:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _GATE_S
        while shown.state is State.PREPARED and shown.held_for is None and loop.time() < give_up:
            await self._store.news_of(shown.turn, within_s=_GLANCE_S)
            shown = await self._store.effect_view(who, shown.effect)
        return shown

    async def _signal(self, turn: str, name: str, payload: AbortSignal | Nudge) -> None:
        handle = self._temporal.get_workflow_handle(turn)
        try:
            async with asyncio.timeout(_SIGNAL.total_seconds()):
                await handle.signal(name, payload, rpc_timeout=_SIGNAL)
        except (RPCError, RuntimeError, TimeoutError) as error:
            # NOT_FOUND: the run has ended, or was never started. Either way the sweeper sees to it.
            quiet = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
            _log.log(20 if quiet else 30, f"{name}.not_signalled", turn=turn, reason=_reason(error))

    async def view(self, who: Principal, turn: str) -> TurnView:
        """Return a turn as the ledger has it.

        Raises:
            NotFound: no such turn, or somebody else's.
        """
        return await self._store.turn_view(who, turn)

    async def settled(self, who: Principal, turn: str, *, timeout_s: float) -> TurnView:
        """Return the turn once it has ended, or as it is when the time is over.

        Raises:
            NotFound: no such turn, or somebody else's.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        while True:
            seen = await self._store.turn_view(who, turn)
            left = give_up - loop.time()
            if seen.state not in OPEN_TURN or left <= 0:
                return seen
            await self._store.news_of(turn, within_s=min(_GLANCE_S, left))

    async def follow(
        self, who: Principal, turn: str, *, after: int = 0
    ) -> AsyncGenerator[TurnEvent | None, None]:
        """Yield the turn's events above ``after``, each once and in order, until its last one.

        Yields None about every half second in which nothing happens, so that the caller can show that
        it lives.

        Raises:
            NotFound: no such turn, or somebody else's.
        """
        loop = asyncio.get_running_loop()
        last_sign = loop.time()
        while True:
            page = await self._store.event_page(who, turn, after=after)
            for event in page.events:
                after = event.number
                yield event
            if page.ended:
                return
            if page.events or loop.time() - last_sign >= _GLANCE_S:
                last_sign = loop.time()
                if not page.events:
                    yield None
            if not page.events:
                await self._store.news_of(turn, within_s=_GLANCE_S)

    async def effect(self, who: Principal, effect: str) -> EffectView:
        """Return the canonical record of one effect.

        Raises:
            NotFound: no such effect, or somebody else's.
        """
        return await self._store.effect_view(who, effect)

    async def attention(self, who: Principal) -> tuple[EffectView, ...]:
        """Return what needs a person in this tenant, all its users', oldest first, at most two hundred.

        It is an operator's right to ask; who calls this has checked it.
        """
        return await self._store.attention(who.tenant)

    async def resolve(self, who: Principal, effect: str, *, word: RulingWord, note: str) -> EffectView:
        """Take an operator's word on an effect of their tenant that needs a person.

        ``applied`` or ``not_applied`` of one that is unknown, ``undone`` or ``stands`` of one whose undo
        failed. The same word again is accepted again. Who calls this has checked that they are one.

        Raises:
            ResolutionRefused: it changed nothing, and says why.
            NotFound: no such effect, or another tenant's.
            StoreUnavailable: nothing was recorded; ask again.
        """
        taken = await self._store.resolve(
            Ruling(
                tenant=who.tenant,
                effect=effect,
                word=word,
                note=note,
                by=f"{who.tenant}/{who.user}",
                via="api",
            )
        )
        if taken.answer != "accepted":
            raise ResolutionRefused(effect, taken.answer, taken.row.state, taken.reason)
        return view(taken.row)

    async def check_engine(self) -> None:
        """Return if Temporal answers, which it has two seconds for.

        Raises:
            EngineUnavailable: it doesn't.
        """
        service = self._temporal.service_client
        try:
            async with asyncio.timeout(_HEALTH.total_seconds()):
                serving = await service.check_health(timeout=_HEALTH)
            reason = "NOT_SERVING"
        except (RPCError, RuntimeError, TimeoutError) as error:
            serving, reason = False, _reason(error)
        if not serving:
            raise EngineUnavailable(service.config.target_host, reason, "nothing was asked of it")


def _check_name(field: str, value: str) -> None:
    if not _NAME.fullmatch(value):
        raise InvalidRequest(field, "must be 1 to 200 characters without control characters")


def _reason(error: Exception) -> str:
    if isinstance(error, RPCError):
        return error.status.name
    fault = connection_fault(error)
    return type(error).__name__ if fault is None else str(fault)
