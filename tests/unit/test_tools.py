"""Registration refuses what contradicts itself, and says what to do."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from turnsaga.errors import DeclarationError, InvalidRequest, PolicyRefused
from turnsaga.testing import FakeSystem
from turnsaga.tools import (
    Call,
    CommitPolicy,
    Committed,
    EffectTool,
    JsonObject,
    Keyed,
    Limits,
    Once,
    Policy,
    ReadTool,
    Tool,
    Tools,
    call_policy,
    check_policies,
    loosened,
    parse_arguments,
    sentence,
    wants_repeat,
)


class Arguments(BaseModel):
    identity: str
    amount: int = 1


async def commit(request: JsonObject, call: Call) -> Committed:
    raise AssertionError((request, call))


async def read(arguments: Arguments, call: Call) -> str:
    raise AssertionError((arguments, call))


def effect(**declared: Any) -> EffectTool[Any]:
    return FakeSystem().tool(**{"name": "note", **declared})


def irreversible(**declared: Any) -> EffectTool[Arguments]:
    fields: dict[str, Any] = {
        "name": "mail",
        "description": "Send a mail.",
        "arguments": Arguments,
        "system": "mail",
        "says": "mail {identity}",
        "commit": commit,
        "irreversible_because": "it can't be called back",
    }
    return EffectTool(**{**fields, **declared})


async def takes_one(request: JsonObject) -> Committed:
    raise AssertionError(request)


UNDO = FakeSystem().undo
CONTRADICTIONS: list[tuple[str, Tool, str]] = [
    ("undo on an irreversible tool", irreversible(compensate=UNDO), "declare reversible=True"),
    ("read-back on an irreversible tool", irreversible(check_undone=UNDO), "declare reversible=True"),
    ("no undo on a reversible tool", effect(compensate=None), "give compensate"),
    ("reversible and a reason that it isn't", effect(irreversible_because="x"), "drop one of the two"),
    ("irreversible without a reason", irreversible(irreversible_because=None), "give irreversible_because"),
    ("an undo without a sentence", effect(undo_says=None), "give undo_says"),
    ("commit with another signature", irreversible(commit=takes_one), "signature"),
    ("commit that isn't a function", effect(commit="charge"), "give a function"),
    ("an unknown on_unknown", effect(on_unknown="guess"), "'compensate'"),
    ("an unknown on_undo_failure", effect(on_undo_failure="stop"), "'halt'"),
    ("compensate unknowns without an undo", irreversible(on_unknown="compensate"), "'resolve' or 'person'"),
    (
        "compensate unknowns by an undo without a key",
        effect(on_unknown="compensate", undo_repeat=Once()),
        "undo_repeat=Keyed",
    ),
    (
        "compensate unknowns whose key dies with the undo",
        effect(on_unknown="compensate", repeat=Keyed(timedelta(days=1), dies_with_undo=True)),
        "on_unknown='resolve'",
    ),
    ("undo with another signature", effect(compensate=commit), "signature"),
    ("look-up with another signature", effect(lookup=takes_one), "signature"),
    ("a name with a capital", irreversible(name="Mail"), "a-z, 0-9 and _"),
    ("a name with a dot", irreversible(name="mail.send"), "a-z, 0-9 and _"),
    ("an empty name", irreversible(name=""), "a-z, 0-9 and _"),
    ("a long name", irreversible(name="m" * 49), "1 to 48"),
    ("the engine's own name", irreversible(name="turn"), "another name"),
    ("no description", irreversible(description=" "), "say what the tool does"),
    ("no system", irreversible(system=""), "name the downstream system"),
    ("arguments that are no model", irreversible(arguments=dict), "BaseModel"),
    ("a sentence over an unknown argument", irreversible(says="mail {invoice}"), "'amount', 'identity'"),
    ("a broken sentence", irreversible(says="mail {identity"), "double a brace"),
    ("no sentence", irreversible(says=""), "say in words"),
    ("immediate on an irreversible tool", irreversible(commits="immediate"), "immediate!"),
    ("a delay that can't be", effect(commits="turn_end+30h"), "longer than a day"),
    ("a failure that does what there isn't", effect(on_failure="panic"), "abort_turn"),
    ("a version of nothing", effect(current=commit), "prepare"),
    ("a policy that there isn't", effect(commits="whenever"), "there is no such policy"),
    ("a key that dies under way", effect(repeat=Keyed(timedelta(seconds=1))), "declare a lifetime"),
    ("no time to call", irreversible(limits=Limits(call=timedelta(0))), "above zero"),
    ("no sends", irreversible(limits=Limits(sends=0)), "at least one"),
    (
        "a read that isn't a function",
        ReadTool(name="find", description="d", arguments=Arguments, read="find", says="find"),  # type: ignore[arg-type]
        "give a function",
    ),
]


@pytest.mark.parametrize(
    ("tool", "remedy"),
    [(tool, remedy) for _, tool, remedy in CONTRADICTIONS],
    ids=[name for name, _, _ in CONTRADICTIONS],
)
def test_contradiction_is_refused_and_the_remedy_named(tool: Tool, remedy: str) -> None:
    with pytest.raises(DeclarationError, match=remedy) as caught:
        Tools([tool])

    assert repr(str(tool.name)) in str(caught.value)


def test_consistent_declarations_are_taken() -> None:
    find = ReadTool(name="find", description="Find.", arguments=Arguments, read=read, says="find {identity}")
    tools = Tools([effect(), irreversible(), irreversible(name="mail_now", commits="immediate!"), find])

    assert [tool.name for tool in tools] == ["note", "mail", "mail_now", "find"]
    assert "mail" in tools


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(DeclarationError, match="the name is taken"):
        Tools([effect(), effect()])


def test_tool_that_promises_nothing_fails_closed() -> None:
    tool = irreversible()

    assert not tool.reversible
    assert not tool.keyed
    assert tool.limits.sends > 1, (
        "the budget is for keyed tools; an unkeyed one is sent once whatever it says"
    )
    assert call_policy(Tools([tool]).cards()["mail"], {}) == Policy(CommitPolicy.CONFIRMED)


def test_policies_of_a_start_are_checked_by_name() -> None:
    cards = Tools([effect(), irreversible()]).cards()

    checked = check_policies(cards, {"note": "turn_end+10s", "mail": "immediate!"})
    assert checked == {
        "note": Policy(CommitPolicy.TURN_END, timedelta(seconds=10)),
        "mail": Policy(CommitPolicy.IMMEDIATE_BY_NAME),
    }
    for policies, what in (
        ({"mail": "immediate"}, "immediate!"),
        ({"mail": "immediate+5s"}, "immediate!"),
        ({"note": "now"}, "there is no such policy"),
        ({"note": "turn_end+5"}, "there is no such policy"),
        ({"note": "turn_end+5s "}, "there is no such policy"),
        ({"note": "turn_end+\u0665s"}, "there is no such policy"),
        ({"note": "off+5s"}, "has no delay"),
        ({"note": "confirmed+25h"}, "longer than a day"),
        ({"nope": "immediate"}, "there is no side-effecting tool"),
    ):
        with pytest.raises(PolicyRefused, match=what):
            check_policies(cards, policies)


@pytest.mark.parametrize("word", ["confirmed", "turn_end", "immediate", "immediate!", "off"])
@pytest.mark.parametrize("delay", ["", "+250ms", "+3s", "+2m", "+1h"])
def test_policy_is_written_as_it_is_read(word: str, delay: str) -> None:
    if word == "off" and delay:
        return
    cards = Tools([effect()]).cards()
    policy = check_policies(cards, {"note": word + delay})["note"]

    assert check_policies(cards, {"note": str(policy)}) == {"note": policy}
    assert policy.holds is not (word.startswith("immediate") and not delay)


# From loose to strict; of two that differ in nothing but their delay, the longer one is stricter.
ORDER = ("immediate", "immediate+1s", "turn_end", "turn_end+1s", "confirmed", "confirmed+1s", "off")


def test_a_policy_is_loosened_by_what_comes_before_it() -> None:
    for at, deployment in enumerate(ORDER):
        cards = Tools([effect(commits=deployment)]).cards()
        for wished_at, wished in enumerate(ORDER):
            looser = loosened(cards, check_policies(cards, {"note": wished}))
            assert set(looser) == ({"note"} if wished_at < at else set()), (deployment, wished)


def test_deployment_decides_policies_and_windows() -> None:
    tools = Tools([effect(), irreversible()], policies={"mail": "off"}, confirm_within=timedelta(seconds=7))

    assert call_policy(tools.cards()["mail"], {}) == Policy(CommitPolicy.OFF)
    assert call_policy(tools.cards()["note"], {}) == Policy(CommitPolicy.IMMEDIATE)
    assert call_policy(tools.cards()["note"], {"note": "turn_end"}) == Policy(CommitPolicy.TURN_END)
    assert {tools.effect(name).limits.confirm for name in ("note", "mail")} == {timedelta(seconds=7)}
    with pytest.raises(PolicyRefused, match="immediate!"):
        Tools([irreversible()], policies={"mail": "immediate"})
    with pytest.raises(PolicyRefused, match="there is no side-effecting tool"):
        Tools([irreversible()], policies={"mial": "off"})


def test_second_equal_effect_is_asked_for_by_name() -> None:
    tool = effect()
    card = Tools([tool]).cards()["note"]
    raw = '{"identity": "a", "text": "10.10", "repeat_on_purpose": true}'

    assert wants_repeat(tool, raw)
    assert parse_arguments(tool, raw) == parse_arguments(tool, '{"identity": "a", "text": "10.10"}')
    assert not wants_repeat(tool, '{"identity": "a", "repeat_on_purpose": "yes"}')
    assert call_policy(card, {}, wanted_again=True) == Policy(CommitPolicy.CONFIRMED)
    assert call_policy(card, {"note": "off"}, wanted_again=True) == Policy(CommitPolicy.OFF)


class Priced(BaseModel):
    model_config = ConfigDict(extra="forbid")

    identity: str
    amount: Decimal


def test_numbers_are_read_alike_whether_a_repeat_is_asked_for_or_not() -> None:
    tool = irreversible(arguments=Priced)
    number = "1234567890.10000000000000000001"
    plain = parse_arguments(tool, f'{{"identity": "#a#", "amount": {number}}}')
    again = parse_arguments(tool, f'{{"identity": "#a#", "amount": {number}, "repeat_on_purpose": true}}')

    assert again == plain


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ('{"identity": "a', "cut off"),
        ("", "identity"),
        ("nope", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"identity": 5}', "identity"),
        ('{"identity": "a", "amount": "many"}', "amount"),
        ('{"identity": NaN}', "not JSON"),
    ],
)
def test_arguments_are_refused_without_repair_and_without_their_values(raw: str, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what) as caught:
        parse_arguments(irreversible(), raw)

    assert "many" not in str(caught.value)


def test_sentence_is_one_short_printable_line() -> None:
    said = sentence("mail {identity}", {"identity": "a\nb\x00" + "c" * 500})

    assert said.startswith("mail a b c")
    assert len(said) <= 200
    assert said.isprintable()
