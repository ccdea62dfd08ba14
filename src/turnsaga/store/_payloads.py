"""JSON in and out of the ledger, in a form whose storing can't fail on its content."""

import dataclasses
import hashlib
import json
import math
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, cast
from uuid import UUID

from pydantic import BaseModel

__all__ = ["MAX_STORED", "dump", "dump_outcome", "dump_receipt", "load", "load_object", "load_text"]

MAX_STORED: Final = 256 * 1024
"""Characters of JSON text that one outcome may take; what is longer is described instead."""

# Deeper than any vendor answers, and shallow enough to be read back wherever it is read.
_MAX_DEPTH: Final = 100
# Python itself writes no more digits, and JSON's readers take far fewer.
_MAX_INTEGER_BITS: Final = 4096
_AS_TEXT: Final = (Decimal, UUID, PurePath)
# Made once: ``json.dumps`` makes one for each text that isn't of its default form.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def dump(value: object) -> str:
    """Return ``value`` as JSON text in ASCII.

    Raises:
        TypeError, ValueError: not JSON; for what is our own and must be right.
    """
    return _ENCODER.encode(value)


def dump_outcome(value: object) -> str:
    """Return ``value`` as JSON text, or a description of it where it can't be stored as it is.

    An outcome is stored after its effect happened, so nothing about its content may make that fail:
    what isn't JSON is written as its nearest JSON or named by its type, what is too large by its size, hash
    and head.
    """
    encoded = _encoded(value)
    if len(encoded) <= MAX_STORED:
        return encoded
    sha = hashlib.sha256(encoded.encode("ascii")).hexdigest()
    return dump({"too_large": len(encoded), "sha256": sha, "head": encoded[:1000]})


def dump_receipt(value: object) -> str:
    """Return a receipt as the JSON text of an object: whole, whatever its size, since an undo works from it.

    What isn't JSON in it is written as by ``dump_outcome``; what is no object stands as its ``receipt``.
    """
    encoded = _encoded(value)
    return encoded if encoded.startswith("{") else f'{{"receipt":{encoded}}}'


def load(encoded: str | None) -> Any:  # noqa: ANN401  # the wire boundary: JSON
    """Return what was stored."""
    return None if encoded is None else json.loads(encoded)


def load_object(encoded: str | None) -> Mapping[str, Any]:
    """Return the JSON object that was stored, empty if there is none."""
    value = load(encoded)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def load_text(encoded: str) -> str:
    """Return text that was stored as JSON, in a form that can be sent on to anybody.

    Half a surrogate pair has no UTF-8, and a model's vendor can't be sent it; two halves that were stored
    one by one are the character that they make.
    """
    return str(load(encoded)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _encoded(value: object) -> str:
    return dump(_plain(value, ()))


def _plain(value: object, inside: tuple[int, ...]) -> Any:  # noqa: ANN401  # JSON
    """Return the JSON that is nearest to a value; ``inside`` are the ids of what it is a part of."""
    try:
        return _read(value, inside)
    except Exception:  # noqa: BLE001  # a vendor's own classes may raise anything when they are read
        return _described(value)


def _read(value: object, inside: tuple[int, ...]) -> Any:  # noqa: ANN401  # as above
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, inside)
    if isinstance(value, str):
        # A subclass may write itself otherwise.
        return str.__str__(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INTEGER_BITS else _described(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else float.__repr__(value)
    if isinstance(value, bytes | bytearray):
        return b64encode(value).decode("ascii")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, _AS_TEXT):
        return str(value)
    if id(value) in inside or len(inside) >= _MAX_DEPTH:
        return _described(value)
    return _parts(value, (*inside, id(value)))


def _parts(value: object, inside: tuple[int, ...]) -> Any:  # noqa: ANN401  # as above
    if isinstance(value, BaseModel):
        return _members(dict(value), inside)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields: dict[object, object] = {
            field.name: getattr(value, field.name) for field in dataclasses.fields(value)
        }
        return _members(fields, inside)
    if isinstance(value, Mapping):
        return _members(cast("Mapping[object, object]", value), inside)
    if isinstance(value, Sequence | AbstractSet):
        return [_plain(part, inside) for part in cast("Collection[object]", value)]
    return _described(value)


def _members(members: Mapping[object, object], inside: tuple[int, ...]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, part in members.items():
        name = _name(key)
        while name in plain:
            # 1 and "1" are two members here and would be one there.
            name += "'"
        plain[name] = _plain(part, inside)
    return plain


def _name(key: object) -> str:
    plain = _plain(key, ())
    return plain if isinstance(plain, str) else dump(plain)


def _described(value: object) -> str:
    return f"<{type(value).__name__}>"
