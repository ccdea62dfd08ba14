"""Figures for Prometheus, read from the ledger when they are asked for: nothing of users or tenants."""

from typing import Final

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from web.tier import TierOf

__all__ = ["router"]

router = APIRouter()
_NEEDING_ATTENTION: Final = "turnsaga_effects_needing_attention"


@router.get("/metrics")
async def metrics(tier: TierOf) -> Response:
    """Return the figures in Prometheus' text format; every web tier over one ledger tells the same."""
    # A registry of its own: what libraries put into the process's is not for here.
    registry = CollectorRegistry()
    Gauge(_NEEDING_ATTENTION, "Effects that wait for a person, of all tenants.", registry=registry).set(
        await tier.store.count_attention()
    )
    return Response(
        generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4, headers={"cache-control": "no-store"}
    )
