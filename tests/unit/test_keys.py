"""Keys: the same call gets the same key everywhere and for ever, and no two calls share one."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnsaga.errors import InvalidRequest
from turnsaga.keys import (
    bounded_name,
    canonical_json,
    digest,
    effect_id,
    effect_key,
    sub_key,
    turn_id,
    undo_key,
)

ANY_ARGUMENTS: Final = settings(max_examples=150, deadline=None, database=None)

# A locale that this machine doesn't have is set in the environment all the same, which is what a process
# under it would begin with.
SCRIPT: Final = """
import contextlib, locale
with contextlib.suppress(locale.Error):
    locale.setlocale(locale.LC_ALL, "")
from turnsaga.keys import effect_key
print(effect_key(
    tool="note.add",
    arguments={
        "\\u0130": 1, "i": 2, "\\u0131": 3, "I": 4, "\\u00e4": 5, "_": 6, "a": 7, "\\U0001f600": 8,
        "\\ufb01": 9,
    },
    tenant="t1", user="u1", nonce="n1", occurrence=1,
))
"""

LOCALE_ARGUMENTS: Final = {
    "\ufb01": 9,
    "\U0001f600": 8,
    "a": 7,
    "_": 6,
    "\u00e4": 5,
    "I": 4,
    "\u0131": 3,
    "i": 2,
    "\u0130": 1,
}


def key_of(
    arguments: Mapping[str, Any] | None = None,
    *,
    tool: str = "note.add",
    tenant: str = "t1",
    user: str = "u1",
    nonce: str = "n1",
    occurrence: int = 1,
) -> str:
    return effect_key(
        tool=tool,
        arguments={} if arguments is None else arguments,
        tenant=tenant,
        user=user,
        nonce=nonce,
        occurrence=occurrence,
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=5)


# ---------------------------------------------------------------- the same call, the same key


def test_the_order_of_arguments_does_not_change_the_key() -> None:
    assert key_of({"b": 2, "a": 1}) == key_of({"a": 1, "b": 2})
    assert key_of({"deep": [{"b": 2, "a": 1}]}) == key_of({"deep": [{"a": 1, "b": 2}]})


@ANY_ARGUMENTS
@given(json_objects)
def test_reversing_every_object_does_not_change_the_key(arguments: dict[str, Any]) -> None:
    def backwards(value: object) -> Any:
        if isinstance(value, dict):
            members = cast("dict[str, object]", value)
            return {name: backwards(members[name]) for name in reversed(members)}
        return [backwards(item) for item in cast("list[object]", value)] if isinstance(value, list) else value

    assert key_of(backwards(arguments)) == key_of(arguments)


@pytest.mark.parametrize("hash_seed", ["0", "1"])
@pytest.mark.parametrize("lang", ["C", "C.UTF-8", "tr_TR.UTF-8", "sv_SE.UTF-8"])
def test_the_locale_of_a_process_does_not_change_the_key(lang: str, hash_seed: str) -> None:
    """Names are sorted by UTF-16 code units; a compare by locale would move the Turkish i and the umlaut."""
    environment = os.environ | {"LC_ALL": lang, "LANG": lang, "PYTHONHASHSEED": hash_seed}

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == key_of(LOCALE_ARGUMENTS)


def test_names_are_sorted_by_utf16_code_units() -> None:
    ordered = canonical_json(LOCALE_ARGUMENTS).decode()

    assert re.findall(r'"(.)"', ordered) == [
        "I", "_", "a", "i", "\u00e4", "\u0130", "\u0131", "\U0001f600", "\ufb01",
    ]  # fmt: skip


def test_numbers_that_json_does_not_tell_apart_share_a_key() -> None:
    assert key_of({"amount": 10}) == key_of({"amount": 10.0}) == key_of({"amount": 1e1})
    assert key_of({"amount": 10}) != key_of({"amount": "10.00"})
    assert key_of({"amount": 0.0}) == key_of({"amount": -0.0})


def test_forms_of_a_text_that_only_look_alike_are_not_mixed_up() -> None:
    assert key_of({"name": "Caf\u00e9"}) != key_of({"name": "Cafe\u0301"})


# ---------------------------------------------------------------- other calls, other keys


def test_every_part_of_the_call_changes_the_key() -> None:
    keys = {
        key_of(),
        key_of({"a": 1}),
        key_of({"a": None}),
        key_of(tool="note.remove"),
        key_of(tenant="t2"),
        key_of(user="u2"),
        key_of(nonce="n2"),
        key_of(occurrence=2),
    }

    assert len(keys) == 8


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"tenant": "ab", "user": "c"}, {"tenant": "a", "user": "bc"}, id="tenant and user"),
        pytest.param({"tool": "pay", "tenant": "1x"}, {"tool": "pay1", "tenant": "x"}, id="tool and tenant"),
        pytest.param({"tenant": "a", "user": "b"}, {"tenant": "b", "user": "a"}, id="exchanged"),
        pytest.param({"nonce": "n1", "occurrence": 11}, {"nonce": "n11", "occurrence": 1}, id="nonce, count"),
        pytest.param({"tenant": 'a","user":"b', "user": ""}, {"tenant": "a", "user": "b"}, id="quotes"),
        pytest.param({"tenant": "a:b", "user": "c"}, {"tenant": "a", "user": "b:c"}, id="a separator"),
        pytest.param({"tenant": "a\x00", "user": "b"}, {"tenant": "a", "user": "\x00b"}, id="a NUL"),
        pytest.param({"arguments": {"user": "u9"}}, {"user": "u9"}, id="an argument named as a part"),
        pytest.param({"arguments": {"a": "1"}}, {"arguments": {"a": 1}}, id="text and number"),
        pytest.param({"arguments": {"a": [1, [2]]}}, {"arguments": {"a": [[1], 2]}}, id="nesting"),
        pytest.param({"arguments": {"a": True}}, {"arguments": {"a": 1}}, id="true and one"),
        pytest.param({"arguments": {"a": ""}}, {"arguments": {"a": None}}, id="empty and none"),
    ],
)
def test_parts_cannot_run_into_each_other(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(**one) != key_of(**other)


@ANY_ARGUMENTS
@given(json_objects, json_objects)
def test_calls_share_a_key_only_if_their_canonical_arguments_are_the_same(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    same = canonical_json(one) == canonical_json(other)

    assert (key_of(one) == key_of(other)) is same


def test_long_arguments_that_differ_in_the_last_byte_have_keys_of_their_own() -> None:
    body = "x" * 200_000

    one, other = key_of({"body": body + "a"}), key_of({"body": body + "b"})

    assert one != other
    assert len(one) == len(other) == 56


def test_each_call_of_a_tool_and_its_undo_have_keys_of_their_own() -> None:
    key = key_of()
    derived = [key, undo_key(key), sub_key(key, "create"), sub_key(key, "pay"), sub_key(key, "undo")]
    derived += [undo_key(sub_key(key, "create")), sub_key(undo_key(key), "create"), undo_key(undo_key(key))]

    assert len(set(derived)) == len(derived)


def test_two_tools_with_one_client_never_share_a_key() -> None:
    first, second = key_of(tool="invoice.create"), key_of(tool="invoice.pay")
    calls = [sub_key(key, call) for key in (first, second) for call in ("create", "pay")]

    assert len({first, second, *calls}) == 6


def test_sub_keys_of_different_effects_cannot_run_into_each_other() -> None:
    assert sub_key("ts1_a", "bc") != sub_key("ts1_ab", "c")


# ---------------------------------------------------------------- form and secrecy


@ANY_ARGUMENTS
@given(json_objects, st.text(), st.text())
def test_every_key_and_id_is_short_and_plain(arguments: dict[str, Any], tenant: str, call: str) -> None:
    key = key_of(arguments, tenant=tenant)
    names = [
        key,
        undo_key(key),
        sub_key(key, call),
        effect_id(turn="trn_1", key=key),
        turn_id(tenant=tenant, user="u", conversation="c", start_key=call),
    ]

    assert all(re.fullmatch(r"[a-z0-9_]{1,64}", name) for name in names), names


def test_nothing_of_a_call_can_be_read_in_its_key() -> None:
    key = key_of({"card": "4242424242424242"}, tenant="acme", user="mallory", nonce="nonce")

    assert not any(word in key for word in ("4242", "acme", "mallory", "nonce", "card", "note"))


def test_kinds_of_keys_are_told_apart_by_their_prefix() -> None:
    key = key_of()
    prefixes = [name.split("_")[0] for name in (key, undo_key(key), sub_key(key, "pay"))]

    assert prefixes == ["ts1", "ts1u", "ts1s"]


# ---------------------------------------------------------------- what is no JSON


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("\ud800", id="half a surrogate pair"),
        pytest.param({"\udfff": 1}, id="half a surrogate pair in a name"),
        pytest.param([{"deep": "a\udc00"}], id="half a surrogate pair deep down"),
        pytest.param(2**53, id="an integer above the exact ones"),
        pytest.param(-(2**53), id="an integer below the exact ones"),
        pytest.param(10**400, id="an integer above all floats"),
        pytest.param(float("nan"), id="NaN"),
        pytest.param(float("inf"), id="infinity"),
        pytest.param(float("-inf"), id="negative infinity"),
        pytest.param({1: "a"}, id="a name that is no text"),
        pytest.param(b"bytes", id="bytes"),
        pytest.param({"a": {1, 2}}, id="a set"),
        pytest.param(object(), id="any object"),
    ],
)
def test_what_is_no_canonical_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="not canonical JSON") as refused:
        canonical_json(value)

    assert refused.value.field == "arguments"
    with pytest.raises(InvalidRequest):
        key_of({"value": value})


@pytest.mark.parametrize(
    "value", [2**53 - 1, -(2**53) + 1, "\U0001f600", "\x00", 5e-324, 1.7976931348623157e308]
)
def test_what_json_carries_exactly_is_taken(value: Any) -> None:
    assert len(key_of({"value": value})) == 56


def test_arguments_nested_too_deeply_are_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]

    with pytest.raises(InvalidRequest, match="not canonical JSON"):
        canonical_json(value)


# ---------------------------------------------------------------- the rule can't change silently

ARGUMENTS: Final = {"amount": "10.00", "currency": "EUR", "invoice": "INV-7", "lines": [1, 2.5, None, True]}
# Made without the library: SHA-256 and base32 of the document written out by hand.
PINNED: Final = {
    "digest": "shi4fl7klbv6ogbvdvaem3xdisvxxttlno3rtajlws2nzj724ufa",
    "effect_key": "ts1_izmzdukfhcvmrliofuo2lbpnchtu5pc2iqixxfjw7uz2uya7otzq",
    "undo_key": "ts1u_3rmw7pvvlp7ub4uuv6aaohu5ipdoemsxjmgm4xukjwgor2ez5ija",
    "sub_key": "ts1s_mdap4rbk22nyydfde7gdgo4yzzbe3znbi5hruvq4dikeyybbkbqq",
    "turn_id": "trn_nh6tp5brpttmkcslcy2fqjj5fao7iv4g",
    "effect_id": "eff_g4a6m6ktxn7lvvosx7a4yfussk2rx7u2",
}


def test_the_rule_of_keys_is_pinned() -> None:
    """Stored keys outlive a release: a change of the rule needs a new prefix, and new values here."""
    key = effect_key(
        tool="invoice.pay", arguments=ARGUMENTS, tenant="acme", user="ada", nonce="n-1", occurrence=1
    )
    turn = turn_id(tenant="acme", user="ada", conversation="c-1", start_key="s-1")

    assert {
        "digest": digest(ARGUMENTS),
        "effect_key": key,
        "undo_key": undo_key(key),
        "sub_key": sub_key(key, "charge"),
        "turn_id": turn,
        "effect_id": effect_id(turn=turn, key=key),
    } == PINNED


def test_canonical_json_is_that_of_the_rfc() -> None:
    """Source: https://www.rfc-editor.org/rfc/rfc8785#section-3.2.2."""
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }

    assert canonical_json(value).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


@pytest.mark.parametrize(("one", "other"), tuple(combinations(["a", "b", "a\x00b", "ab", ""], 2)))
def test_different_starts_are_different_turns(one: str, other: str) -> None:
    def turn(**parts: str) -> str:
        return turn_id(**({"tenant": "t", "user": "u", "conversation": "c", "start_key": "s"} | parts))

    for part in ("tenant", "user", "conversation", "start_key"):
        assert turn(**{part: one}) != turn(**{part: other})
    assert turn(start_key=one) == turn(start_key=one)


@pytest.mark.parametrize("name", ["", "INV-7", "kind/ñ😀", "x" * 200])
def test_short_name_is_itself(name: str) -> None:
    assert bounded_name(name) == name


@pytest.mark.parametrize("tail", ["", "\x00", "\ud800", "é", "z" * 10_000], ids=range(5))
def test_name_that_no_index_takes_is_told_from_every_other_one(tail: str) -> None:
    names = [f"{'x' * 300}{tail}{last}" for last in ("a", "b", "\udfff")] + [
        f"\x00{tail}",
        f"\ufffd{tail}\x00",
    ]
    bounded = [bounded_name(name) for name in names]

    assert len(set(bounded)) == len(names)
    for each in bounded:
        assert len(each) <= 200
        assert "\x00" not in each
        each.encode("utf-8")
