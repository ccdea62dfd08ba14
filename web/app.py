"""The app: routes, limits and errors over a client of turns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI

from turnsaga.client import TurnClient
from web import aborts, attention, effects, events, health, metrics, turns
from web.guard import Guard
from web.identities import choose_identity
from web.identity import Identity
from web.problems import handle_errors
from web.rates import Rates
from web.settings import WebSettings
from web.tier import Tier

__all__ = ["create_app"]

# Proxies close a connection on which nothing is sent for 60 s, some after 30; the API promises 15.
_KEEP_ALIVE_S: Final = 10.0
# With the server's own 3 s this stays below the time that a supervisor gives.
_DRAIN_S: Final = 2.5


def create_app(
    client: TurnClient,
    settings: WebSettings,
    *,
    identity: Identity | None = None,
    stopping: asyncio.Event | None = None,
    keep_alive_s: float = _KEEP_ALIVE_S,
    drain_s: float = _DRAIN_S,
) -> FastAPI:
    """Return the HTTP API over a client whose ledger is open; who made them closes them.

    Who acts is said by ``identity``, or by the one that the settings choose.
    ``stopping`` is set by the server as soon as it is told to stop. The app's shutdown waits up to
    ``drain_s`` for aborts and starts that were under way when their requests were cut.
    """
    tier = Tier(
        client=client,
        settings=settings,
        identity=identity or choose_identity(settings),
        stopping=stopping or asyncio.Event(),
        keep_alive_s=keep_alive_s,
        rates=Rates(settings),
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await tier.untorn.drain(within_s=drain_s)

    app = FastAPI(
        title="turnsaga",
        lifespan=lifespan,
        # A redirect drops the body of a POST in some clients. The wrong address is a plain 404.
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.tier = tier
    app.add_middleware(Guard, hosts=tier.identity.hosts)
    handle_errors(app)
    for part in (turns, aborts, events, effects, attention, health, metrics):
        app.include_router(part.router)
    return app
