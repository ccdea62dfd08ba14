"""The tools of a deployment, and how a call's arguments and sentences are read."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from turnsaga.errors import DeclarationError, InvalidRequest, NotFound
from turnsaga.tools._check import check
from turnsaga.tools._declare import EffectTool, ReadTool, Tool
from turnsaga.tools._policies import ToolCard, check_policies, default_policy

__all__ = ["REPEAT", "Tools", "card_of", "parse_arguments", "sentence", "wants_repeat"]

REPEAT: Final = "repeat_on_purpose"
"""The argument beside a tool's own by which a model asks for a second, equal effect in one turn."""


class Tools:
    """The tools of a deployment, by name. Building it checks every declaration.

    Args:
        tools: what is declared.
        policies: when effects of these tools are committed in this deployment, instead of what they
            declare; as a start names them.
        confirm_within: how long users of this deployment are asked, instead of what the tools declare.

    Raises:
        DeclarationError: two tools share a name, or one of them contradicts itself.
        PolicyRefused: a policy that its tool can't have, or one of a tool that there isn't.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        policies: Mapping[str, str] | None = None,
        confirm_within: timedelta | None = None,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            check(tool)
            if tool.name in self._tools:
                raise DeclarationError(tool.name, "the name is taken", "give one of the two another name")
            self._tools[tool.name] = tool
        if confirm_within is not None:
            for tool in self:
                if isinstance(tool, EffectTool):
                    limits = replace(tool.limits, confirm=confirm_within)
                    self._tools[tool.name] = replace(tool, limits=limits)
        for name, policy in check_policies(self.cards(), policies or {}).items():
            self._tools[name] = replace(self.effect(name), commits=str(policy))

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            raise NotFound("tool", name) from None

    def effect(self, name: str) -> EffectTool[Any]:
        """Return the side-effecting tool of that name.

        Raises:
            NotFound: no tool of that name has effects.
        """
        tool = self[name]
        if not isinstance(tool, EffectTool):
            raise NotFound("tool with effects", name)
        return tool

    def cards(self) -> dict[str, ToolCard]:
        """Return what is known of each tool outside its worker, by name."""
        return {tool.name: card_of(tool) for tool in self}


def card_of(tool: Tool) -> ToolCard:
    """Return what is known of a tool outside its worker."""
    if isinstance(tool, ReadTool):
        return ToolCard(name=tool.name, description=tool.description)
    return ToolCard(
        name=tool.name,
        description=tool.description,
        system=tool.system,
        reversible=tool.reversible,
        commits=tool.commits or str(default_policy(reversible=tool.reversible)),
    )


def parse_arguments(tool: Tool, raw: str) -> BaseModel:
    """Return the parsed arguments of a call from the JSON text that the model wrote.

    Nothing is repaired: text that was cut off, or that isn't an object of the declared shape, is refused.
    ``REPEAT`` isn't the tool's, and is left out.

    Raises:
        InvalidRequest: says what is wrong, without repeating the values.
    """
    try:
        value = from_json(raw or "{}", allow_inf_nan=False)
    except ValueError as error:
        cut = "EOF" in str(error)
        what = "cut off before their end" if cut else f"not JSON ({error})"
        raise InvalidRequest("arguments", f"{what}; nothing was run, send the whole call again") from None
    if not isinstance(value, dict):
        raise InvalidRequest("arguments", "not a JSON object; nothing was run")
    if _is_for_us(tool) and REPEAT in value:
        raw = _without(raw, REPEAT)
    try:
        return tool.arguments.model_validate_json(raw or "{}", strict=False)  # type: ignore[no-any-return]
    except ValidationError as error:
        found = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise InvalidRequest("arguments", f"{found}; nothing was run") from None


def wants_repeat(tool: Tool, raw: str) -> bool:
    """Tell whether a call that ``parse_arguments`` takes asks for its effect to be done once more."""
    return _is_for_us(tool) and from_json(raw or "{}").get(REPEAT) is True


def _without(raw: str, member: str) -> str:
    """Return a JSON object without one member, and every number in it written as it was."""
    mark = "#"
    while mark in raw:
        mark += "#"
    value = json.loads(raw, parse_float=lambda text: f"{mark}{text}{mark}")
    kept = json.dumps({name: part for name, part in value.items() if name != member})
    return re.sub(f'"{mark}([^#"]*){mark}"', r"\1", kept)


def _is_for_us(tool: Tool) -> bool:
    return isinstance(tool, EffectTool) and REPEAT not in tool.arguments.model_fields


def sentence(template: str, arguments: Mapping[str, Any]) -> str:
    """Return ``template`` with the arguments filled in, cut to 200 characters."""
    text = template.format_map({name: _short(value) for name, value in arguments.items()})
    return text if len(text) <= 200 else text[:199] + "…"


def _short(value: object) -> str:
    text = "" if value is None else str(value)
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= 80 else text[:79] + "…"
