"""``turnsaga adopt``: lets a ledger belong to another Temporal, once a person says so."""

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, func, select
from temporalio.service import RPCError

from turnsaga.cli._session import Session, connect_to_temporal
from turnsaga.errors import EngineUnavailable, TurnSagaError
from turnsaga.ledger import OPEN_TURN
from turnsaga.recovery import engine_of
from turnsaga.store import schema

__all__ = ["Adoption", "NothingToAdopt", "adopt"]


class NothingToAdopt(TurnSagaError):
    """The ledger belongs to the Temporal that is configured."""

    def __init__(self, cluster: str, namespace: str) -> None:
        super().__init__(
            f"this ledger belongs to Temporal {cluster!r}/{namespace!r} already, the one that is configured; "
            "nothing was changed"
        )
        self.cluster = cluster
        self.namespace = namespace


class Adoption(BaseModel):
    """The Temporal that the ledger belongs to, None before the first sweep, and the one that is configured.

    ``to_settle`` counts the turns that the sweeper settles once the ledger has changed over, since the
    new one knows no run of theirs.
    """

    model_config = ConfigDict(frozen=True)

    ledger_cluster: str | None
    ledger_namespace: str | None
    configured_cluster: str
    configured_namespace: str
    to_settle: int
    adopted: bool


async def adopt(session: Session, *, yes: bool) -> Adoption:
    """Return both, and with ``yes`` make the configured one the ledger's.

    Raises:
        NothingToAdopt: they are the same.
        EngineUnavailable: the configured one doesn't answer. Nothing was changed.
    """
    done = "nothing was changed"
    client = await connect_to_temporal(done=done)
    try:
        here = await engine_of(client)
    except RPCError as error:
        raise EngineUnavailable(client.service_client.config.target_host, error.status.name, done) from error
    known = await session.store.engine()
    if known == here:
        raise NothingToAdopt(here.cluster, here.namespace)
    to_settle = await session.reader.ask(_to_settle)
    if yes:
        await session.store.set_engine(here)
    return Adoption(
        ledger_cluster=None if known is None else known.cluster,
        ledger_namespace=None if known is None else known.namespace,
        configured_cluster=here.cluster,
        configured_namespace=here.namespace,
        to_settle=to_settle,
        adopted=yes,
    )


def _to_settle(connection: Connection) -> int:
    table = schema.turns
    return int(
        connection.execute(
            select(func.count()).where(
                table.c.begun_at.is_not(None) & (table.c.state.in_(sorted(OPEN_TURN)) | table.c.follow)
            )
        ).scalar_one()
    )
