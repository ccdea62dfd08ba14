"""Who acts: what every identity gives, and the development identity, a header that the caller may write.

So that one is taken on loopback only, and only under a host name of loopback: a page of another site that
has its own name resolve to 127.0.0.1 would otherwise be of the same origin as this API.
"""

import re
from typing import Annotated, Final, Protocol, TypeGuard

import structlog
from fastapi import Depends, Request
from starlette.datastructures import Headers

from turnsaga.errors import TurnSagaError
from turnsaga.models import Principal
from web.hosts import LOOPBACK_HOSTS, Hosts
from web.problems import Problem, Word

__all__ = [
    "HEADER",
    "OPERATOR",
    "ROLES",
    "Caller",
    "DevelopmentIdentity",
    "Identity",
    "IdentityRefused",
    "is_name",
]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
HEADER: Final = "X-Turnsaga-User"
ROLES: Final = ("user", "service", "operator")
OPERATOR: Final = "operator"
"""Who may look at and resolve what needs a person, of all users of the tenant."""
_PART: Final = r"[A-Za-z0-9._@:|+=-]{1,100}"
_IDENTITY: Final = re.compile(rf"({_PART})/({_PART})(?:/({'|'.join(ROLES)}))?")


class IdentityRefused(TurnSagaError):
    """No identity can be had from these settings; says what to change."""


class Identity(Protocol):
    """Says who acts.

    ``hosts`` are the names under which requests are taken. ``roles_bind`` tells whether a role limits what
    its bearer may ask for.
    """

    @property
    def hosts(self) -> Hosts: ...

    @property
    def roles_bind(self) -> bool: ...

    async def caller(self, headers: Headers) -> Principal:
        """Return who sends these headers.

        Raises:
            Problem: they don't say so, or it can't be checked now.
        """
        ...


class DevelopmentIdentity:
    """Takes the caller's word for who they are, with all rights over what is theirs.

    What is other users' takes an operator's role here too: a caller who names it has it.
    """

    def __init__(self) -> None:
        self.hosts: Final = LOOPBACK_HOSTS
        self.roles_bind: Final = False

    async def caller(self, headers: Headers) -> Principal:
        """Return who the header names."""
        given = headers.getlist(HEADER)
        found = _IDENTITY.fullmatch(given[0]) if len(given) == 1 else None
        if found is None:
            raise Problem(
                Word.UNAUTHENTICATED,
                f"send one header '{HEADER}: tenant/user' or 'tenant/user/role': tenant and user of 1 to 100 "
                "characters of A-Z a-z 0-9 . _ @ : | + = -, role one of user, service, operator",
                headers={"www-authenticate": HEADER},
            )
        tenant, user, role = found.groups()
        return Principal.model_validate({"tenant": tenant, "user": user, "role": role or "user"})


def is_name(value: object) -> TypeGuard[str]:
    """Tell whether the value may name a tenant or a user, whichever identity it comes from."""
    return isinstance(value, str) and re.fullmatch(_PART, value) is not None


async def _caller(request: Request) -> Principal:
    identity: Identity = request.app.state.tier.identity
    who = await identity.caller(request.headers)
    # Not bound to the request's lines: who somebody is stays out of them. A turn's id leads to its user.
    _log.debug("web.acts_for", tenant=who.tenant, user=who.user)
    return who


Caller = Annotated[Principal, Depends(_caller)]
"""An argument of a route: who acts."""
