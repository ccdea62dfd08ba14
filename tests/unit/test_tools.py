"""Registration refuses what contradicts itself, and says what to do."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from turnsaga.errors import DeclarationError, InvalidRequest, PolicyRefused
from turnsaga.testing import FakeSystem
from turnsaga.tools import (
    Call,
    Committed,
    EffectTool,
    JsonObject,
    Keyed,
    Limits,
    ReadTool,
    Tool,
    Tools,
    check_policies,
    commits_at_once,
    parse_arguments,
    sentence,
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


def not_async(request: JsonObject, call: Call) -> Committed:
    raise AssertionError((request, call))


UNDO = FakeSystem().undo
CONTRADICTIONS: list[tuple[str, Tool, str]] = [
    ("undo on an irreversible tool", irreversible(compensate=UNDO), "declare reversible=True"),
    ("read-back on an irreversible tool", irreversible(check_undone=UNDO), "declare reversible=True"),
    ("no undo on a reversible tool", effect(compensate=None), "give compensate"),
    ("reversible and a reason that it isn't", effect(irreversible_because="x"), "drop one of the two"),
    ("irreversible without a reason", irreversible(irreversible_because=None), "give irreversible_because"),
    ("an undo without a sentence", effect(undo_says=None), "give undo_says"),
    ("commit with another signature", irreversible(commit=takes_one), "signature"),
    ("commit that isn't async", irreversible(commit=not_async), "async def"),
    ("undo with another signature", effect(compensate=commit), "signature"),
    ("look-up with another signature", effect(lookup=takes_one), "signature"),
    ("prepare that isn't async", effect(prepare=not_async), "async def"),
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
    ("a policy of a later version", effect(commits="turn_end"), "commits at once only"),
    ("a policy that there isn't", effect(commits="whenever"), "there is no such policy"),
    ("a key that dies under way", effect(repeat=Keyed(timedelta(seconds=1))), "declare a lifetime"),
    ("no time to call", irreversible(limits=Limits(call=timedelta(0))), "above zero"),
    ("no sends", irreversible(limits=Limits(sends=0)), "at least one"),
    (
        "a read that isn't async",
        ReadTool(name="find", description="d", arguments=Arguments, read=not_async, says="find"),  # type: ignore[arg-type]
        "async def",
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
    assert not commits_at_once(Tools([tool]).cards()["mail"], {})


def test_policies_of_a_start_are_checked_by_name() -> None:
    cards = Tools([effect(), irreversible()]).cards()

    assert check_policies(cards, {"note": "immediate", "mail": "immediate!"}) == {
        "note": "immediate",
        "mail": "immediate!",
    }
    for policies, what in (
        ({"mail": "immediate"}, "immediate!"),
        ({"note": "turn_end"}, "commits at once only"),
        ({"note": "confirmed"}, "commits at once only"),
        ({"note": "off"}, "commits at once only"),
        ({"note": "now"}, "there is no such policy"),
        ({"nope": "immediate"}, "there is no side-effecting tool"),
    ):
        with pytest.raises(PolicyRefused, match=what):
            check_policies(cards, policies)


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
