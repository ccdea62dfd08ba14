"""The tools of a deployment, and how a call's arguments and sentences are read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from turnsaga.errors import DeclarationError, InvalidRequest, NotFound
from turnsaga.tools._check import check
from turnsaga.tools._declare import EffectTool, Tool
from turnsaga.tools._policies import ToolCard

__all__ = ["Tools", "parse_arguments", "sentence"]


class Tools:
    """The tools of a deployment, by name. Building it checks every declaration.

    Raises:
        DeclarationError: two tools share a name, or one of them contradicts itself.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            check(tool)
            if tool.name in self._tools:
                raise DeclarationError(tool.name, "the name is taken", "give one of the two another name")
            self._tools[tool.name] = tool

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
        return {
            tool.name: ToolCard(
                name=tool.name,
                description=tool.description,
                system=tool.system if isinstance(tool, EffectTool) else None,
                reversible=tool.reversible if isinstance(tool, EffectTool) else None,
                commits=tool.commits if isinstance(tool, EffectTool) else None,
            )
            for tool in self
        }


def parse_arguments(tool: Tool, raw: str) -> BaseModel:
    """Return the parsed arguments of a call from the JSON text that the model wrote.

    Nothing is repaired: text that was cut off, or that isn't an object of the declared shape, is refused.

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
    try:
        return tool.arguments.model_validate_json(raw or "{}", strict=False)  # type: ignore[no-any-return]
    except ValidationError as error:
        found = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise InvalidRequest("arguments", f"{found}; nothing was run") from None


def sentence(template: str, arguments: Mapping[str, Any]) -> str:
    """Return ``template`` with the arguments filled in, cut to 200 characters."""
    text = template.format_map({name: _short(value) for name, value in arguments.items()})
    return text if len(text) <= 200 else text[:199] + "…"


def _short(value: object) -> str:
    text = "" if value is None else str(value)
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= 80 else text[:79] + "…"
