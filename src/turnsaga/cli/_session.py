"""What a command works with: a deployment's ledger, at this version's schema, and its Temporal."""

import asyncio
import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turnsaga import names
from turnsaga.cli._questions import Owners, owner_of_effect, owner_of_turn
from turnsaga.cli._reading import LedgerReader, LedgerUnreadable
from turnsaga.connecting import connection_fault, temporal_config
from turnsaga.converting import data_converter
from turnsaga.deployment import Deployment
from turnsaga.errors import EngineMisconfigured, EngineUnavailable, InvalidRequest, ResolutionRefused
from turnsaga.ledger import OPEN_TURN
from turnsaga.models import (
    MAX_NOTE,
    AbortSignal,
    EffectView,
    FenceAnswer,
    FenceRequest,
    Ruling,
    RulingWord,
    TurnStart,
    TurnView,
)
from turnsaga.recovery import RecoveryActivities, SweepReport
from turnsaga.store import SqlStore, view
from turnsaga.store.migrations import HEAD, current_revision

__all__ = ["Session", "connect_to_temporal"]

_CONNECT: Final = timedelta(seconds=5)
_SIGNAL: Final = timedelta(seconds=5)


async def connect_to_temporal(*, done: str) -> Client:
    """Return a client of the deployment's Temporal.

    Raises:
        EngineUnavailable: it doesn't answer in time; ``done`` says what has been done all the same.
    """
    address = "as configured"
    try:
        config = temporal_config()
        address = config.get("target_host", address)
        config["data_converter"] = data_converter
        async with asyncio.timeout(_CONNECT.total_seconds()):
            return await Client.connect(**config)
    except TimeoutError:
        raise EngineUnavailable(address, f"not within {_CONNECT.total_seconds():g} s", done) from None
    except (EngineMisconfigured, RuntimeError, ValueError) as error:
        reason = str(connection_fault(error) or error).split("\n")[0][:200]
        raise EngineUnavailable(address, reason, done) from error


@dataclass(frozen=True)
class Session:
    """One command's work on one deployment."""

    deployment: Deployment
    reader: LedgerReader
    store: SqlStore

    @classmethod
    @asynccontextmanager
    async def open(cls, deployment: Deployment) -> AsyncIterator["Session"]:
        """Give a session over a ledger that is at this version's schema.

        Raises:
            LedgerUnreadable: there is no such ledger, or it is at another schema. It is left as it is.
        """
        reader = LedgerReader(deployment.database)
        revision = await reader.ask(current_revision)
        if revision != HEAD:
            raise LedgerUnreadable(
                reader.where,
                f"its schema is at {revision or 'no revision'}, and this version works with {HEAD}",
                "see turnsaga doctor",
            )
        store = SqlStore(deployment.database, connections=1)
        try:
            yield cls(deployment, reader, store)
        finally:
            await store.close()

    async def turn(self, turn: str, owners: Owners) -> TurnView:
        """Return a turn of whichever of these owners.

        Raises:
            NotFound: there is none.
        """
        who = await self.reader.ask(owner_of_turn, turn, owners)
        return await self.store.turn_view(who, turn)

    async def effect(self, effect: str, owners: Owners) -> EffectView:
        """Return an effect of whichever of these owners.

        Raises:
            NotFound: there is none.
        """
        who = await self.reader.ask(owner_of_effect, effect, owners)
        return await self.store.effect_view(who, effect)

    async def resolve(self, effect: str, owners: Owners, *, word: RulingWord, note: str) -> EffectView:
        """Take the word of whoever calls the command on an effect that needs a person.

        Raises:
            InvalidRequest: the note is empty or too long.
            NotFound: there is no such effect.
            ResolutionRefused: it changed nothing, and says why.
        """
        if not 1 <= len(note.strip()) <= MAX_NOTE:
            raise InvalidRequest("--note", f"must be 1 to {MAX_NOTE} characters")
        who = await self.reader.ask(owner_of_effect, effect, owners)
        ruling = Ruling(
            tenant=who.tenant, effect=effect, word=word, note=note, by=f"operator {_login()}", via="cli"
        )
        taken = await self.store.resolve(ruling)
        if taken.answer != "accepted":
            raise ResolutionRefused(effect, taken.answer, taken.row.state, taken.reason)
        return view(taken.row)

    async def abort(self, turn: str, owners: Owners, *, reason: str | None) -> FenceAnswer:
        """Stop a turn: its fence is written once this has returned or raised ``EngineUnavailable``.

        Raises:
            NotFound: there is no such turn.
            EngineUnavailable: the fence is written, and Temporal couldn't be told: the run meets it, or
                the sweeper tells it.
        """
        who = await self.reader.ask(owner_of_turn, turn, owners)
        answer = await self.store.fence(
            FenceRequest(
                tenant=who.tenant,
                turn=turn,
                cause="abort",
                via="api",
                reason=reason,
                # Not the turn's owner: a person with this command and the database did it.
                by=f"operator {_login()}",
            )
        )
        if answer.state in OPEN_TURN:
            await self._signal(turn, AbortSignal(next=answer.next))
        return answer

    async def _signal(self, turn: str, signal: AbortSignal) -> None:
        done = f"turn {turn!r} is fenced all the same: nothing more of it is sent, and the sweeper settles it"
        client = await connect_to_temporal(done=done)
        try:
            await client.get_workflow_handle(turn).signal(names.ABORT, signal, rpc_timeout=_SIGNAL)
        except RPCError as error:
            # NOT_FOUND: its run has ended or never began; that is for the sweeper to see to.
            if error.status is not RPCStatusCode.NOT_FOUND:
                address = client.service_client.config.target_host
                raise EngineUnavailable(address, error.status.name, done) from error

    async def sweep(self) -> SweepReport:
        """Look once, from here, for turns that nobody settles; workers carry out what that starts.

        Raises:
            ApplicationError: this Temporal isn't the ledger's. Nothing was swept.
            EngineUnavailable: Temporal doesn't answer.
        """
        client = await connect_to_temporal(done="nothing was swept")
        recovery = RecoveryActivities(self.store, client, task_queue=self.deployment.task_queue, adopt=False)
        return await recovery.sweep()

    async def recover(self, start: TurnStart) -> None:
        """Have workers settle one turn whose run is over.

        Raises:
            ApplicationError: this Temporal isn't the ledger's. Nothing was started.
            EngineUnavailable: Temporal doesn't answer.
        """
        client = await connect_to_temporal(done="nothing was started")
        recovery = RecoveryActivities(self.store, client, task_queue=self.deployment.task_queue, adopt=False)
        await recovery.recover(start)


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
