"""What the routes share."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from turnsaga.client import TurnClient
from turnsaga.store import SqlStore
from web.identity import Identity
from web.rates import Rates
from web.settings import WebSettings
from web.untorn import Untorn

__all__ = ["Tier", "TierOf"]


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One web tier. ``stopping`` is set when its server begins to stop: streams and waits end then."""

    client: TurnClient
    settings: WebSettings
    identity: Identity
    stopping: asyncio.Event
    keep_alive_s: float
    rates: Rates
    untorn: Untorn = field(default_factory=Untorn)

    @property
    def store(self) -> SqlStore:
        """The ledger, for views."""
        return self.client.store


async def _tier(request: Request) -> Tier:
    tier: Tier = request.app.state.tier
    return tier


TierOf = Annotated[Tier, Depends(_tier)]
"""An argument of a route: the tier that it belongs to."""
