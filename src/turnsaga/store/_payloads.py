"""JSON in and out of the ledger, in a form whose storing can't fail on its content."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, cast

__all__ = ["MAX_STORED", "dump", "dump_outcome", "load", "load_object"]

MAX_STORED: Final = 256 * 1024
"""Characters of JSON text that one outcome may take; what is longer is described instead."""


def dump(value: object) -> str:
    """Return ``value`` as JSON text in ASCII.

    Raises:
        TypeError, ValueError: not JSON; for what is our own and must be right.
    """
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def dump_outcome(value: object) -> str:
    """Return ``value`` as JSON text, or a description of it where it can't be stored as it is.

    An outcome is stored after its effect happened, so nothing about its content may make that fail:
    what isn't JSON is named by its type, what is too large by its size, hash and head.
    """
    try:
        encoded = json.dumps(
            value, ensure_ascii=True, separators=(",", ":"), default=_described, skipkeys=True
        )
    except (TypeError, ValueError, RecursionError) as error:
        encoded = dump({"unstorable": type(value).__name__, "why": str(error)[:200]})
    if len(encoded) <= MAX_STORED:
        return encoded
    sha = hashlib.sha256(encoded.encode("ascii")).hexdigest()
    return dump({"too_large": len(encoded), "sha256": sha, "head": encoded[:1000]})


def load(encoded: str | None) -> Any:  # noqa: ANN401  # the wire boundary: JSON
    """Return what was stored."""
    return None if encoded is None else json.loads(encoded)


def load_object(encoded: str | None) -> Mapping[str, Any]:
    """Return the JSON object that was stored, empty if there is none."""
    value = load(encoded)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _described(value: object) -> str:
    return f"<{type(value).__name__}>"
