"""Whether the process lives, and whether it can do its work. Asked without an identity."""

import asyncio
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from turnsaga.errors import EngineUnavailable, StoreUnavailable
from web.problems import Word, answer, unavailable
from web.tier import Tier, TierOf

__all__ = ["router"]

router = APIRouter()
_PATIENCE_S: Final = 2.0
_OK: Final = "ok"
_SILENT: Final = "doesn't answer"


@router.get("/healthz")
async def healthz() -> Response:
    """Answer that the process lives."""
    return answer({"status": _OK})


@router.get("/readyz")
async def readyz(tier: TierOf) -> Response:
    """Answer 200 if the ledger and Temporal answer, else 503 with the name of the one that doesn't."""
    ledger, temporal = await asyncio.gather(_ledger(tier), _temporal(tier))
    found = {"ledger": ledger, "temporal": temporal}
    silent = [name for name, state in found.items() if state != _OK]
    if silent:
        raise unavailable(Word.NOT_READY, f"{' and '.join(silent)}: no answer", members=found)
    return answer(found)


async def _ledger(tier: Tier) -> str:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await tier.store.engine()
    except (StoreUnavailable, TimeoutError):
        return _SILENT
    return _OK


async def _temporal(tier: Tier) -> str:
    try:
        await tier.client.check_engine()
    except EngineUnavailable:
        return _SILENT
    return _OK
