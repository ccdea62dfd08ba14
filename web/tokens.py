"""``TokenIdentity``: who acts is what a signed bearer token says.

Sources: https://www.rfc-editor.org/rfc/rfc6750 (the header), https://www.rfc-editor.org/rfc/rfc7519 (the
claims), https://www.rfc-editor.org/rfc/rfc8725 (what to be wary of).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
import structlog
from starlette.datastructures import Headers

from turnsaga.models import Principal
from web.hosts import Hosts
from web.identity import HEADER, ROLES, is_name
from web.problems import Problem, Word
from web.signing_keys import SigningKeys

__all__ = ["TokenIdentity", "TokenRules"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_BEARER: Final = re.compile(r"bearer +([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)
# For an error that isn't here, what it derives from is.
_WHY: Final[Mapping[type, str]] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token isn't valid yet",
    jwt.InvalidIssuerError: "the token is from another issuer",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.MissingRequiredClaimError: "the token lacks one of exp, iss and aud",
    jwt.InvalidAlgorithmError: "the token is signed in a way that isn't accepted here",
    jwt.InvalidKeyError: "the token is signed by a key that isn't accepted here",
    jwt.InvalidSignatureError: "the token's signature is wrong",
    jwt.PyJWTError: "the token can't be read",
}


@dataclass(frozen=True, kw_only=True)
class TokenRules:
    """What a token must say, and the names of the claims that say who acts."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway_s: int
    tenant_claim: str
    user_claim: str
    role_claim: str


class TokenIdentity:
    """Takes signed bearer tokens and nothing else; roles bind."""

    def __init__(self, keys: SigningKeys, rules: TokenRules, hosts: Hosts) -> None:
        self.hosts: Final = hosts
        self.roles_bind: Final = True
        self._keys = keys
        self._rules = rules

    async def caller(self, headers: Headers) -> Principal:
        """Return who the token says that acts."""
        if HEADER in headers:
            raise _refused(f"{HEADER} isn't taken here: leave it out and send a bearer token")
        given = headers.getlist("authorization")
        found = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if found is None:
            raise _refused("send one header 'Authorization: Bearer <token>'")
        try:
            claims = await self._claims(found.group(1))
        except jwt.PyJWTError as error:
            _log.debug("web.token_refused", reason=type(error).__name__)
            raise _refused(next(_WHY[kind] for kind in type(error).__mro__ if kind in _WHY)) from None
        return self._principal(claims)

    async def _claims(self, token: str) -> Mapping[str, Any]:
        rules = self._rules
        header = jwt.get_unverified_header(token)
        # Looked at before a key is: a token that no key could make good has no key fetched for it.
        if header.get("alg") not in rules.algorithms:
            raise jwt.InvalidAlgorithmError
        key = await self._keys.find(header.get("kid"))
        if key is None:
            raise jwt.InvalidKeyError
        # A PyJWK verifies by its own algorithm alone, whatever the token's header names.
        return jwt.decode(
            token,
            key,
            algorithms=rules.algorithms,
            audience=rules.audience,
            issuer=rules.issuer,
            leeway=rules.leeway_s,
            options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
        )

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        rules = self._rules
        tenant, user = claims.get(rules.tenant_claim), claims.get(rules.user_claim)
        role = claims.get(rules.role_claim, "user")
        if not is_name(tenant):
            raise _refused("the token's tenant is missing or isn't a name of this API")
        if not is_name(user):
            raise _refused("the token's user is missing or isn't a name of this API")
        if role not in ROLES:
            raise _refused(f"the token's role is none of {', '.join(ROLES)}")
        return Principal(tenant=tenant, user=user, role=role)


def _refused(detail: str) -> Problem:
    return Problem(Word.UNAUTHENTICATED, detail, headers={"www-authenticate": 'Bearer error="invalid_token"'})
