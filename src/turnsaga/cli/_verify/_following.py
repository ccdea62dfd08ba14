"""What ``--fix`` does: it writes a vendor's answer down, and lets workers go on from there.

Only about an effect that its turn has handed over, and only by the ledger's own rules for look-ups. It
sends nothing and undoes nothing: where an undo follows, a recovery workflow carries it out.
"""

from sqlalchemy import Connection, select
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from turnsaga.cli._session import Session
from turnsaga.cli._verify._asking import Answer
from turnsaga.errors import EngineUnavailable
from turnsaga.ledger import State, TurnState
from turnsaga.models import TurnRef, TurnStart
from turnsaga.store import CommitOutcome, EffectRow, schema
from turnsaga.tools import Found, Missing

__all__ = ["follow_up"]


async def follow_up(session: Session, row: EffectRow, answer: Answer) -> str:
    """Write the answer about an effect that is ``unknown`` down; return what was done, empty if nothing."""
    if not row.owned or not isinstance(answer.found, Found | Missing):
        # One that isn't handed over is being looked up by its own turn.
        return ""
    outcome = None
    if isinstance(answer.found, Found):
        outcome = CommitOutcome(applied=True, receipt=answer.found.receipt, result=answer.found.result)
    moved = await session.store.record_lookup(row.ref, row.token, outcome, asked_at=answer.asked_at)
    if moved.version == row.version:
        # "Not found" while the request can still land, or somebody was quicker.
        return ""
    done = f"the ledger says {moved.state} now"
    if moved.state is not State.COMMITTED:
        return done
    state, start = await session.reader.ask(_turn, TurnRef(tenant=row.tenant, turn=row.turn))
    if state not in {TurnState.ABORTED, TurnState.FAILED}:
        return done
    try:
        await session.recover(start)
    except (EngineUnavailable, ApplicationError, RPCError) as error:
        return f"{done}; the sweeper settles its turn, for Temporal couldn't be told ({type(error).__name__})"
    return f"{done}; a recovery settles its turn"


def _turn(connection: Connection, ref: TurnRef) -> tuple[TurnState, TurnStart]:
    table = schema.turns
    row = connection.execute(
        select(table.c.state, table.c.conversation, table.c.deadline_ms).where(
            (table.c.tenant == ref.tenant) & (table.c.turn == ref.turn)
        )
    ).one()
    start = TurnStart(
        tenant=ref.tenant, turn=ref.turn, conversation=row.conversation, deadline_ms=row.deadline_ms
    )
    return TurnState(row.state), start
