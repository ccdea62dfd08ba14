"""The keys that bearer tokens are checked with: a set given by the settings, or one that an issuer serves.

Source of the shape: https://www.rfc-editor.org/rfc/rfc7517.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol, cast

import structlog
from jwt import PyJWK, PyJWKClient, PyJWTError

from web.identity import IdentityRefused
from web.problems import Word, unavailable

__all__ = ["FetchedKeys", "SigningKeys", "StaticKeys"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_SETTING: Final = "TURNSAGA_JWT_KEYS"
# What PyJWT raises for members of the wrong kind differs by the key's type.
_MALFORMED: Final = (PyJWTError, ValueError, TypeError, AttributeError, LookupError)
_SYMMETRIC: Final = "oct"


class SigningKeys(Protocol):
    """Finds the key that a token names."""

    async def find(self, kid: str | None) -> PyJWK | None:
        """Return the key of that id, or None if there is none.

        Raises:
            Problem: no key could be had yet.
        """
        ...


class StaticKeys:
    """The keys of one set. Where it is a single key, a token needs no ``kid``."""

    def __init__(self, keys: Iterable[PyJWK]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def read(cls, given: str, algorithms: Iterable[str]) -> "StaticKeys":
        """Return the set's keys for signatures of these algorithms; ``given`` is its JSON or its file's path.

        What can't be used is refused by its place, since it may be a secret.

        Raises:
            IdentityRefused: the set can't be read, or holds what it shouldn't.
        """
        allowed = frozenset(algorithms)
        members = _members(given)
        keys = [_key(member, f"key {number} of {_SETTING}") for number, member in enumerate(members, 1)]
        names = [key.key_id for key in keys]
        if len(set(names)) < len(names):
            raise IdentityRefused(f"{_SETTING} has two keys of one kid, or two without: give each its own")
        if any(each.startswith("HS") for each in allowed) and all(key.key_type != _SYMMETRIC for key in keys):
            raise IdentityRefused(
                f"TURNSAGA_JWT_ALGORITHMS names HS*, but {_SETTING} has no key of type {_SYMMETRIC!r}"
            )
        used = [key for key in keys if key.algorithm_name in allowed and key.public_key_use in {"sig", None}]
        if not used:
            raise IdentityRefused(
                f"{_SETTING} has no signature key for one of TURNSAGA_JWT_ALGORITHMS: "
                f"{', '.join(sorted(allowed))}"
            )
        return cls(used)

    async def find(self, kid: str | None) -> PyJWK | None:
        """Return the key of that id, or the only one."""
        if kid is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.key_id == kid), None)


class FetchedKeys:
    """The keys that an issuer serves, fetched when one is missing or they are ``lifespan_s`` old.

    An issuer that is away is asked again every ``pause_s``, and the keys it gave before stay good. One that
    answers is asked for unknown ids no more often, whatever tokens come.
    """

    def __init__(
        self,
        url: str,
        *,
        lifespan_s: float = 300.0,
        pause_s: float = 10.0,
        first_pause_s: float = 1.0,
        timeout_s: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Its own cache is off: it drops keys that are old even if no newer ones can be had.
        self._issuer = PyJWKClient(url, cache_jwk_set=False, timeout=timeout_s)
        self._lifespan_s = lifespan_s
        self._pause_s = pause_s
        self._first_pause_s = first_pause_s
        self._clock = clock
        self._known: dict[str, PyJWK] = {}
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str | None) -> PyJWK | None:
        """Return the key of that id, after a fetch if need be."""
        if kid is None:
            return None
        if kid not in self._known or self._clock() - self._fetched_at >= self._lifespan_s:
            await self._refresh()
        if not self._known:
            raise unavailable(
                Word.KEYS_UNAVAILABLE, "the issuer's keys can't be had, so no token can be checked; ask again"
            )
        return self._known.get(kid)

    async def _refresh(self) -> None:
        if self._fetching is None:
            pause_s = self._pause_s if self._known else self._first_pause_s
            if self._clock() - self._tried_at < pause_s:
                return
            self._fetching = asyncio.create_task(self._fetch())
        # Others wait for the same fetch: it isn't one request's to cancel.
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        try:
            found = await asyncio.to_thread(self._issuer.get_signing_keys, refresh=True)
            self._known = {key.key_id: key for key in found if key.key_id is not None}
            self._fetched_at = self._clock()
            _log.debug("web.keys_fetched", keys=len(self._known))
        except (*_MALFORMED, OSError, RecursionError) as error:
            _log.warning("web.keys_unavailable", url=self._issuer.uri, reason=str(error)[:200])
        finally:
            self._tried_at = self._clock()
            self._fetching = None


def _members(given: str) -> list[object]:
    text = given if given.lstrip().startswith("{") else _text(given)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise IdentityRefused(f"{_SETTING} isn't JSON") from None
    members = cast("dict[str, object]", found).get("keys") if isinstance(found, dict) else None
    if not isinstance(members, list) or not members:
        raise IdentityRefused(f"{_SETTING} isn't a JWK set: an object with a list 'keys' that isn't empty")
    return cast("list[object]", members)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        # The setting isn't quoted: a mistyped set may hold a secret.
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise IdentityRefused(f"{_SETTING} is neither a JSON object nor a readable file ({reason})") from None


def _key(member: object, place: str) -> PyJWK:
    if not isinstance(member, dict):
        raise IdentityRefused(f"{place} isn't an object")
    found = cast("dict[str, Any]", member)
    if "d" in found:
        raise IdentityRefused(f"{place} is a private key; give its public members only")
    if not isinstance(found.get("kid", ""), str):
        raise IdentityRefused(f"{place} has a kid that isn't a string")
    try:
        key = PyJWK(found)
        weakness = key.Algorithm.check_key_length(key.key)
    except _MALFORMED:
        raise IdentityRefused(f"{place} isn't a key that can be used") from None
    if weakness:
        raise IdentityRefused(f"{place} is too short for {key.algorithm_name}")
    return key
