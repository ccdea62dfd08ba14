"""Who acts. This version has the development identity only: a header that the caller is free to write.

So it is taken on loopback only, and only under a host name of loopback: a page of another site that has
its own name resolve to 127.0.0.1 would otherwise be of the same origin as this API.
"""

import re
from typing import Annotated, Final

import structlog
from fastapi import Depends, Request

from turnsaga.models import Principal
from web.problems import Problem, Word
from web.settings import WebSettings

__all__ = ["HEADER", "Caller", "is_local_host", "why_refused"]

HEADER: Final = "X-Turnsaga-User"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_PART: Final = r"[A-Za-z0-9._@:|+=-]{1,100}"
_IDENTITY: Final = re.compile(rf"({_PART})/({_PART})(?:/(user|service|operator))?")
_HOST: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


def why_refused(settings: WebSettings) -> str | None:
    """Return why the development identity can't be used with these settings, or None if it can."""
    if settings.env == "production":
        return (
            "TURNSAGA_ENV='production' needs bearer tokens (JWT), which come with a later version; "
            "this one has the development identity only: set TURNSAGA_ENV=development"
        )
    if settings.web_host not in _LOOPBACK:
        return (
            f"TURNSAGA_WEB_HOST={settings.web_host!r} isn't loopback, and the development identity works on "
            f"loopback only: use one of {', '.join(_LOOPBACK)} (JWT comes with a later version)"
        )
    return None


def is_local_host(host: str) -> bool:
    """Tell whether a ``Host`` header names this machine's loopback, on whatever port."""
    return _HOST.fullmatch(host) is not None


async def _caller(request: Request) -> Principal:
    """Return who the header says that acts.

    Raises:
        Problem: the header is missing, doubled or malformed.
    """
    given = request.headers.getlist(HEADER)
    found = _IDENTITY.fullmatch(given[0]) if len(given) == 1 else None
    if found is None:
        raise Problem(
            Word.UNAUTHENTICATED,
            f"send one header '{HEADER}: tenant/user' or 'tenant/user/role': tenant and user of 1 to 100 "
            "characters of A-Z a-z 0-9 . _ @ : | + = -, role one of user, service, operator",
            headers={"www-authenticate": HEADER},
        )
    tenant, user, role = found.groups()
    structlog.contextvars.bind_contextvars(tenant=tenant, user=user)
    return Principal.model_validate({"tenant": tenant, "user": user, "role": role or "user"})


Caller = Annotated[Principal, Depends(_caller)]
"""An argument of a route: who acts."""
