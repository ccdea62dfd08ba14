"""Idempotency keys and ids. Pure.

A key is made once, when an effect is prepared, and stored; from then on it is read back, never made
again. So the rule below may change between versions without touching any stored effect: a new rule gets
a new prefix.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import rfc8785

from turnsaga.errors import InvalidRequest

__all__ = [
    "KEY_PREFIX",
    "Json",
    "bounded_name",
    "canonical_json",
    "digest",
    "effect_id",
    "effect_key",
    "sub_key",
    "turn_id",
    "undo_key",
]

KEY_PREFIX: Final = "ts1"
"""Version of the rule by which keys are made."""

Json = Mapping[str, Any] | Sequence[Any] | str | int | float | bool | None


def canonical_json(value: Json) -> bytes:
    """Return ``value`` as canonical JSON (RFC 8785), UTF-8.

    The order of an object's members is that of their UTF-16 code units, whatever the process's locale,
    so the same value has the same bytes everywhere. Source: https://www.rfc-editor.org/rfc/rfc8785.

    Raises:
        InvalidRequest: not JSON, a number that JSON can't carry exactly, or text with half a surrogate pair.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequest("arguments", f"not canonical JSON: {error}") from error


def digest(value: Json) -> str:
    """Return the SHA-256 of the canonical JSON of ``value`` in lower-case base32, 52 characters."""
    raw = hashlib.sha256(canonical_json(value)).digest()
    return base64.b32encode(raw).decode("ascii").rstrip("=").lower()


def effect_key(
    *, tool: str, arguments: Mapping[str, Any], tenant: str, user: str, nonce: str, occurrence: int
) -> str:
    """Return the idempotency key of one effect: 56 characters of ``[a-z0-9_]``.

    All parts are members of one canonical document, so no two lists of parts can run into each other.
    ``arguments`` are those of the tool's parsed model, so 10, 10.0 and "10.00" are one amount where the
    model says that they are. ``nonce`` is the turn's: another turn's key is always another one.
    """
    parts = {
        "arguments": dict(arguments),
        "nonce": nonce,
        "occurrence": occurrence,
        "tenant": tenant,
        "tool": tool,
        "user": user,
    }
    return f"{KEY_PREFIX}_{digest(parts)}"


def bounded_name(text: str, *, limit: int = 200) -> str:
    """Return a name that fits into an index: the text itself where it is short and can be stored as it is.

    Another stands as its head and the SHA-256 of all of it, so that no two become one.

    Args:
        text: a name that a tool gives: a business identity, a resource, a version.
        limit: characters that the name may have, at least 100.
    """
    whole = text.encode("utf-8", "surrogatepass")
    if len(text) <= limit and "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    head = text[: limit - 75].replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return f"{head}… sha256:{hashlib.sha256(whole).hexdigest()}"


def undo_key(key: str) -> str:
    """Return the key under which the effect of ``key`` is undone."""
    return f"{KEY_PREFIX}u_{digest(['undo', key])}"


def sub_key(key: str, call: str) -> str:
    """Return the key of one of several calls that a tool makes for one effect; ``call`` names it."""
    return f"{KEY_PREFIX}s_{digest(['call', key, call])}"


def turn_id(*, tenant: str, user: str, conversation: str, start_key: str) -> str:
    """Return the id of the turn that ``start_key`` begins; the same start is the same turn."""
    return f"trn_{digest([tenant, user, conversation, start_key])[:32]}"


def effect_id(*, turn: str, key: str) -> str:
    """Return the id of the effect that ``key`` stands for in ``turn``."""
    return f"eff_{digest([turn, key])[:32]}"
