"""Stripe's formats: form bodies with nested keys, errors, lists, the search language.

Source: https://docs.stripe.com/api and https://docs.stripe.com/search#search-query-language
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from sandbox.calls import Answer, json_answer
from sandbox.errors import Refused

_MAX_PARAMETERS = 500
_NESTED = re.compile(r"([^\[\]]+)\[([^\[\]]*)\]")
_CLAUSE = re.compile(
    r"""\s*(?:metadata\[(?P<quote>["'])(?P<name>(?:\\.|(?!(?P=quote)).)+)(?P=quote)\]|(?P<field>\w+))"""
    r"""\s*:\s*(?:(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<number>\d+))\s*"""
)
_AND = re.compile(r"AND\s+", re.IGNORECASE)

SEARCH_FIELDS = ("amount", "currency", "customer", "status")


def new_id(prefix: str) -> str:
    """Return an object's id in Stripe's form."""
    return f"{prefix}_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class Form:
    """A form: plain parameters, and the nested ones by the name of their hash."""

    plain: Mapping[str, str] = field(default_factory=dict[str, str])
    nested: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])

    def allow(self, *names: str) -> None:
        """Refuse a parameter that isn't among ``names``; ``expand`` always is, and does nothing.

        Raises:
            Refused: there is one.
        """
        for name in (*self.plain, *self.nested):
            if name not in names and name != "expand":
                raise refusal("parameter_unknown", f"Received unknown parameter: {name}", param=name)

    def text(self, name: str) -> str:
        """Return a parameter that has to be there.

        Raises:
            Refused: it is missing or empty.
        """
        value = self.plain.get(name, "")
        if not value:
            raise refusal("parameter_missing", f"Missing required param: {name}.", param=name)
        return value

    def positive(self, name: str, default: int | None = None) -> int:
        """Return a positive integer.

        Raises:
            Refused: it isn't one, or is missing and has no default.
        """
        if default is not None and name not in self.plain:
            return default
        value = self.text(name)
        if not re.fullmatch(r"-?[0-9]{1,18}", value):
            raise refusal("parameter_invalid_integer", f"Invalid integer: {value}", param=name)
        if int(value) < 1:
            message = "This value must be greater than or equal to 1."
            raise refusal("parameter_invalid_integer", message, param=name)
        return int(value)

    def metadata(self) -> dict[str, str]:
        """Return the metadata.

        Raises:
            Refused: it goes over Stripe's limits (50 keys of 40 characters, values of 500).
        """
        metadata = {name: value for name, value in self.nested.get("metadata", {}).items() if value}
        if self.plain.get("metadata"):
            raise refusal("parameter_invalid_object", "Invalid object", param="metadata")
        if len(metadata) > 50 or any(len(n) > 40 or len(v) > 500 for n, v in metadata.items()):
            message = "Metadata can have up to 50 keys of up to 40 characters, with values of up to 500."
            raise refusal("metadata_too_large", message, param="metadata")
        return metadata


def parse_form(encoded: str) -> Form:
    """Return a query or body as a form.

    Raises:
        Refused: it isn't one.
    """
    plain: dict[str, str] = {}
    nested: dict[str, dict[str, str]] = {}
    try:
        pairs = parse_qsl(encoded, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError:
        raise refusal(None, "Received more parameters than can be read.") from None
    for name, value in pairs:
        if match := _NESTED.fullmatch(name):
            nested.setdefault(match[1], {})[match[2]] = value
        elif "[" in name or "]" in name:
            raise refusal("parameter_unknown", f"Received unknown parameter: {name}", param=name)
        else:
            plain[name] = value
    return Form(plain, nested)


@dataclass(frozen=True, slots=True)
class Clause:
    """One term of a search: a metadata key or a field, and the value that it has to have."""

    name: str
    value: str
    is_metadata: bool


def parse_search(query: str) -> tuple[Clause, ...]:
    """Return the terms of a search, all of which have to hold.

    Raises:
        Refused: it isn't of the part of the language that is spoken here.
    """
    clauses: list[Clause] = []
    position = 0
    while match := _CLAUSE.match(query, position):
        name, field_name = match["name"], match["field"]
        if field_name is not None and field_name not in SEARCH_FIELDS:
            raise refusal(None, f"Field `{field_name}` is an unsupported search field.", param="query")
        value = match["number"] or _unescape((match["quoted"] or "")[1:-1])
        clauses.append(Clause(field_name or _unescape(name), value, is_metadata=field_name is None))
        position = match.end()
        if position == len(query):
            return tuple(clauses)
        conjunction = _AND.match(query, position)
        if conjunction is None:
            break
        position = conjunction.end()
    message = (
        "We were unable to parse your search query; it takes terms like metadata['k']:'v' joined by AND."
    )
    raise refusal(None, message, param="query")


def refusal(
    code: str | None,
    message: str,
    *,
    status: int = 400,
    kind: str = "invalid_request_error",
    param: str | None = None,
) -> Refused:
    """Return a refusal with Stripe's error as its answer."""
    return Refused(error_answer(status, kind, code, message, param))


def error_answer(status: int, kind: str, code: str | None, message: str, param: str | None = None) -> Answer:
    """Return an error in Stripe's form."""
    error = {"type": kind, "code": code, "message": message, "param": param}
    content = {"error": {name: value for name, value in error.items() if value is not None}}
    return json_answer(status, content).with_headers(("request-id", new_id("req")))


def object_answer(content: Mapping[str, object]) -> Answer:
    """Return an object as an answer."""
    return json_answer(200, content).with_headers(("request-id", new_id("req")))


def list_answer(url: str, found: Sequence[object], limit: int) -> Answer:
    """Return a page of a list, given one object more than ``limit`` where there are more."""
    return object_answer(
        {"object": "list", "url": url, "has_more": len(found) > limit, "data": found[:limit]}
    )


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
