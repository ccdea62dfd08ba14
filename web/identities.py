"""Which identity the settings choose: bearer tokens if they say anything about them, else development's."""

from typing import Final
from urllib.parse import urlsplit

from jwt.algorithms import get_default_algorithms

from web.hosts import ANY_HOST, Hosts, is_host_name
from web.identity import DevelopmentIdentity, Identity, IdentityRefused
from web.settings import WebSettings
from web.signing_keys import FetchedKeys, SigningKeys, StaticKeys
from web.tokens import TokenIdentity, TokenRules

__all__ = ["choose_identity"]

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_ALGORITHMS: Final = frozenset(get_default_algorithms()) - {"none"}
_WHAT_TO_GIVE: Final = (
    "TURNSAGA_JWT_ISSUER, TURNSAGA_JWT_AUDIENCE and one of TURNSAGA_JWT_KEYS and TURNSAGA_JWT_JWKS_URL"
)


def choose_identity(settings: WebSettings) -> Identity:
    """Return the identity that these settings ask for. Reads the file of a static key set.

    Raises:
        IdentityRefused: they contradict each other, or ask for what isn't safe.
    """
    if not settings.names_tokens:
        return _development(settings)
    issuer, audience = settings.jwt_issuer, settings.jwt_audience
    if issuer is None or audience is None:
        missing = "TURNSAGA_JWT_ISSUER" if issuer is None else "TURNSAGA_JWT_AUDIENCE"
        raise IdentityRefused(f"{missing} is missing: bearer tokens need {_WHAT_TO_GIVE}")
    unknown = [name for name in settings.jwt_algorithms if name not in _ALGORITHMS]
    if unknown:
        raise IdentityRefused(
            f"TURNSAGA_JWT_ALGORITHMS names {unknown[0]!r}; there are {', '.join(sorted(_ALGORITHMS))}"
        )
    rules = TokenRules(
        issuer=issuer,
        audience=audience,
        algorithms=settings.jwt_algorithms,
        leeway_s=settings.jwt_leeway_s,
        tenant_claim=settings.jwt_claim_tenant,
        user_claim=settings.jwt_claim_user,
        role_claim=settings.jwt_claim_role,
    )
    return TokenIdentity(_keys(settings), rules, _hosts(settings))


def _development(settings: WebSettings) -> Identity:
    if settings.env == "production":
        raise IdentityRefused(
            "TURNSAGA_ENV='production' takes bearer tokens only: "
            f"set {_WHAT_TO_GIVE}, or TURNSAGA_ENV=development"
        )
    if settings.web_host not in _LOOPBACK:
        raise IdentityRefused(
            f"TURNSAGA_WEB_HOST={settings.web_host!r} isn't loopback, and the development identity works on "
            f"loopback only: use one of {', '.join(_LOOPBACK)}, or bearer tokens by {_WHAT_TO_GIVE}"
        )
    if settings.allowed_hosts is not None:
        raise IdentityRefused(
            "TURNSAGA_ALLOWED_HOSTS goes with bearer tokens; the development identity is served as loopback "
            f"only: leave it out, or set {_WHAT_TO_GIVE}"
        )
    return DevelopmentIdentity()


def _keys(settings: WebSettings) -> SigningKeys:
    given, url = settings.jwt_keys, settings.jwt_jwks_url
    if given is not None and url is not None:
        raise IdentityRefused("TURNSAGA_JWT_KEYS and TURNSAGA_JWT_JWKS_URL are both set: keep one")
    if given is not None:
        return StaticKeys.read(given.get_secret_value(), settings.jwt_algorithms)
    if url is None:
        raise IdentityRefused(
            "the tokens' keys are missing: set one of TURNSAGA_JWT_KEYS and TURNSAGA_JWT_JWKS_URL"
        )
    if not _is_web_address(url):
        raise IdentityRefused(
            "TURNSAGA_JWT_JWKS_URL must be an address of http or https, without a user in it"
        )
    if any(name.startswith("HS") for name in settings.jwt_algorithms):
        raise IdentityRefused(
            "TURNSAGA_JWT_ALGORITHMS names HS*, whose keys nobody else may see: give them by "
            "TURNSAGA_JWT_KEYS instead of TURNSAGA_JWT_JWKS_URL"
        )
    return FetchedKeys(url)


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(
            parts.scheme in {"http", "https"}
            and parts.hostname
            and parts.port != 0
            and "@" not in parts.netloc
        )
    except ValueError:
        return False


def _hosts(settings: WebSettings) -> Hosts:
    if settings.allowed_hosts is None:
        return ANY_HOST
    odd = [name for name in settings.allowed_hosts if not is_host_name(name)]
    if odd:
        raise IdentityRefused(
            f"TURNSAGA_ALLOWED_HOSTS names {odd[0]!r}: give names without a port, an IPv6 address in brackets"
        )
    return Hosts(settings.allowed_hosts, "this host name isn't among those that are served here")
