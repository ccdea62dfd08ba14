"""What is refused at registration, and what to do about it."""

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from string import Formatter
from typing import Any, Final

from pydantic import BaseModel

from turnsaga.errors import DeclarationError, PolicyRefused
from turnsaga.settle import OnUnknown
from turnsaga.tools._declare import EffectTool, Keyed, ReadTool, Tool
from turnsaga.tools._policies import read_policy

__all__ = ["check"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
_RESERVED: Final = frozenset({"model", "turn", "effect", "abort", "confirm", "reject", "ledger"})


def check(tool: Tool) -> None:
    if not _NAME.fullmatch(str(tool.name)):
        raise DeclarationError(
            str(tool.name), "the name isn't safe in keys, activity names and models' APIs",
            "use 1 to 48 of a-z, 0-9 and _, beginning with a letter",
        )  # fmt: skip
    if tool.name in _RESERVED:
        raise DeclarationError(tool.name, "the name is used by the engine", "choose another name")
    if not inspect.isclass(tool.arguments) or not issubclass(tool.arguments, BaseModel):
        raise DeclarationError(
            tool.name, "arguments isn't a pydantic model", "declare the arguments as a BaseModel subclass"
        )
    if not tool.description.strip():
        raise DeclarationError(tool.name, "the description is empty", "say what the tool does, for the model")
    _check_sentence(tool, "says", tool.says)
    if isinstance(tool, ReadTool):
        _check_function(tool.name, "read", tool.read, 2)
    else:
        _check_effect(tool)


def _check_effect(tool: EffectTool[Any]) -> None:
    _check_function(tool.name, "commit", tool.commit, 2)
    for name, function, count in (
        ("prepare", tool.prepare, 2),
        ("current", tool.current, 2),
        ("compensate", tool.compensate, 3),
        ("check_undone", tool.check_undone, 3),
        ("lookup", tool.lookup, 2),
    ):
        if function is not None:
            _check_function(tool.name, name, function, count)
    if tool.summary is not None:
        _check_sentence(tool, "summary", tool.summary)
    if tool.current is not None and tool.prepare is None:
        raise DeclarationError(
            tool.name, "current has nothing to compare with", "give prepare, and have it name the version"
        )
    _check_undo(tool)
    _check_bounds(tool)
    if not tool.system.strip():
        raise DeclarationError(tool.name, "system is empty", "name the downstream system")
    if tool.commits is not None:
        try:
            read_policy(tool.name, tool.commits, reversible=tool.reversible)
        except PolicyRefused as error:
            raise DeclarationError(tool.name, str(error), "declare another policy, or none") from None
    if tool.on_failure not in {"go_on", "abort_turn"}:
        raise DeclarationError(
            tool.name, f"on_failure is {tool.on_failure!r}", "declare 'go_on' or 'abort_turn'"
        )
    if tool.on_undo_failure not in {"go_on", "halt"}:
        raise DeclarationError(
            tool.name, f"on_undo_failure is {tool.on_undo_failure!r}", "declare 'go_on' or 'halt'"
        )
    _check_unknown(tool)


def _check_undo(tool: EffectTool[Any]) -> None:
    if tool.reversible and tool.compensate is None:
        raise DeclarationError(
            tool.name, "it is reversible and has no undo", "give compensate, or declare reversible=False"
        )
    if tool.reversible and tool.irreversible_because is not None:
        raise DeclarationError(tool.name, "it is reversible and says why it isn't", "drop one of the two")
    if tool.reversible:
        if tool.undo_says is None:
            raise DeclarationError(
                tool.name, "its undo has no sentence for people", 'give undo_says, such as "refund {amount}"'
            )
        _check_sentence(tool, "undo_says", tool.undo_says)
        return
    if tool.compensate is not None or tool.check_undone is not None or tool.undo_says is not None:
        raise DeclarationError(
            tool.name, "it is irreversible and has an undo", "declare reversible=True, or drop the undo"
        )
    if not (tool.irreversible_because or "").strip():
        raise DeclarationError(
            tool.name, "nothing says why it can't be undone",
            "give irreversible_because, or reversible=True with compensate",
        )  # fmt: skip


def _check_unknown(tool: EffectTool[Any]) -> None:
    if tool.on_unknown not in {word.value for word in OnUnknown}:
        raise DeclarationError(
            tool.name, f"on_unknown is {tool.on_unknown!r}",
            f"declare one of {sorted(word.value for word in OnUnknown)}",
        )  # fmt: skip
    if tool.on_unknown != OnUnknown.COMPENSATE.value:
        return
    if not tool.reversible:
        raise DeclarationError(
            tool.name, "it can't be undone, and on_unknown is 'compensate'", "declare 'resolve' or 'person'"
        )
    if not isinstance(tool.undo_repeat, Keyed):
        raise DeclarationError(
            tool.name, "on_unknown is 'compensate', and its undo has no key",
            "declare undo_repeat=Keyed(...), or on_unknown='resolve'",
        )  # fmt: skip
    if isinstance(tool.repeat, Keyed) and tool.repeat.dies_with_undo:
        raise DeclarationError(
            tool.name, "on_unknown is 'compensate', and a late request would make it anew (dies_with_undo)",
            "declare on_unknown='resolve'",
        )  # fmt: skip


def _check_bounds(tool: EffectTool[Any]) -> None:
    limits = tool.limits
    for name in ("send_by", "call", "confirm", "wait", "resolve", "undo_call", "undo_total"):
        if getattr(limits, name) <= timedelta(0):
            raise DeclarationError(tool.name, f"limits.{name} isn't positive", "give a duration above zero")
    if limits.sends < 1 or limits.undo_sends < 1:
        raise DeclarationError(tool.name, "a budget of sends is below 1", "allow at least one send")
    needed = limits.send_by + limits.landing_window
    if isinstance(tool.repeat, Keyed) and tool.repeat.lifetime <= needed:
        raise DeclarationError(
            tool.name, f"its key lives {tool.repeat.lifetime}, no longer than one request can be under way",
            f"declare a lifetime above send_by + landing_window ({needed}), or Once()",
        )  # fmt: skip


def _check_sentence(tool: Tool, field_name: str, template: str) -> None:
    if not template.strip():
        raise DeclarationError(tool.name, f"{field_name} is empty", "say in words what the call does")
    try:
        names = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise DeclarationError(tool.name, f"{field_name}: {error}", "double a brace that is meant") from None
    unknown = sorted(names - set(tool.arguments.model_fields))
    if unknown:
        raise DeclarationError(
            tool.name, f"{field_name} names {unknown[0]!r}, which isn't an argument",
            f"use only {sorted(tool.arguments.model_fields)}",
        )  # fmt: skip


def _check_function(tool: str, name: str, function: Callable[..., object], count: int) -> None:
    if not callable(function):
        raise DeclarationError(tool, f"{name} isn't a function", "give a function, async or not")
    try:
        inspect.signature(function).bind(*([None] * count))
    except TypeError:
        raise DeclarationError(
            tool, f"{name} doesn't take {count} positional arguments", "see EffectTool for its signature"
        ) from None
