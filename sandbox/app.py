"""The HTTP application: the systems under their mounts, and the sandbox's own routes."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from sandbox import crm, hook, mail, pay
from sandbox.control import Control
from sandbox.exchange import Exchange
from sandbox.knobs import Panel
from sandbox.store import Store
from sandbox.wire import VendorEndpoint, problem

SYSTEMS = (pay.SYSTEM, crm.SYSTEM, mail.SYSTEM, hook.SYSTEM)


def build_app(store: Store, panel: Panel, exchange: Exchange) -> Starlette:
    """Return the application, which only a server that uses ``CuttableProtocol`` can run."""
    return Starlette(
        routes=[
            *Control(store, panel).routes(),
            Mount(f"/{pay.SYSTEM}", app=VendorEndpoint(pay.SYSTEM, pay.read, exchange)),
            Mount(f"/{crm.SYSTEM}", app=VendorEndpoint(crm.SYSTEM, crm.read, exchange)),
            Mount(f"/{hook.SYSTEM}", app=VendorEndpoint(hook.SYSTEM, hook.read, exchange)),
        ],
        exception_handlers={HTTPException: _http_problem},
    )


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # Starlette hands over what is registered
    answer = problem(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return Response(answer.body, answer.status, headers={**dict(answer.headers), **(error.headers or {})})
