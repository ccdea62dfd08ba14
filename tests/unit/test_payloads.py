"""What isn't JSON is stored as its nearest JSON, and what is JSON as it is."""

import json
import types
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from turnsaga.store import _payloads as payloads

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class _Answer(BaseModel):
    charge: str
    amount: Decimal


@dataclass
class _Money:
    amount: Decimal


@given(st.dictionaries(st.text(), JSON))
def test_receipt_that_is_json_is_read_back_as_it_was(receipt: dict[str, object]) -> None:
    stored = payloads.dump_receipt(receipt)

    assert stored.isascii()
    assert payloads.load_object(stored) == receipt


def test_what_is_not_json_is_written_as_its_nearest() -> None:
    value = {
        "set": {1},
        "bytes": b"\xff",
        "decimal": Decimal("1.10"),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "view": types.MappingProxyType({"a": (1, 2)}),
        "model": _Answer(charge="ch_1", amount=Decimal("2.50")),
        "data": _Money(Decimal("3.00")),
        "nan": float("nan"),
        "none": object(),
        1: "one",
        "1": "uno",
    }

    assert json.loads(payloads.dump_receipt(value)) == {
        "set": [1],
        "bytes": "/w==",
        "decimal": "1.10",
        "at": "2026-01-01T00:00:00+00:00",
        "view": {"a": [1, 2]},
        "model": {"charge": "ch_1", "amount": "2.50"},
        "data": {"amount": "3.00"},
        "nan": "nan",
        "none": "<object>",
        "1": "one",
        "1'": "uno",
    }


@given(st.text())
def test_text_that_can_be_written_stays_as_it_is(text: str) -> None:
    assert payloads.load_text(payloads.dump(text)) == text


def test_half_a_surrogate_pair_is_replaced_and_two_halves_are_joined() -> None:
    assert payloads.load_text(payloads.dump("a\ud83db")) == "a\ufffdb"
    assert payloads.load_text(payloads.dump("\ud83d" + "\ude00")) == "\U0001f600"
    assert payloads.load_text(payloads.dump("\x00")) == "\x00"
