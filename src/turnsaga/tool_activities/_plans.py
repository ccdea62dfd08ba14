"""How a workflow runs one call of a tool."""

from typing import Any

from pydantic import BaseModel

from turnsaga.models import CallPlan
from turnsaga.tool_activities._common import MARGIN, ms
from turnsaga.tools import EffectTool, ReadTool, sentence

__all__ = ["call_plan"]


def call_plan(
    tool: EffectTool[Any] | ReadTool[Any],
    index: int,
    arguments: BaseModel | None,
    *,
    held: bool = False,
    after: tuple[int, ...] = (),
) -> CallPlan:
    """Return how a workflow runs one call of a tool: its sentences and its bounds.

    Without ``arguments``, which this version of the tool may not be able to read, its sentences are its name.
    ``held`` says that its policy has it wait, prepared; ``after`` which calls of its reply come first.
    """

    def said(template: str) -> str:
        return tool.name if arguments is None else sentence(template, dict(arguments))

    if isinstance(tool, ReadTool):
        attempt = tool.timeout + MARGIN
        return CallPlan(
            index=index,
            tool=tool.name,
            kind="read",
            summary=said(tool.says),
            attempt_ms=ms(attempt),
            total_ms=ms(4 * attempt),
        )
    limits = tool.limits
    attempt = limits.send_by + limits.call + limits.wait + MARGIN
    return CallPlan(
        index=index,
        tool=tool.name,
        kind="effect",
        summary=said(tool.summary or tool.says),
        undo_summary=said(tool.undo_says or ""),
        attempt_ms=ms(attempt),
        total_ms=ms(attempt * (limits.sends + 1)),
        undo_attempt_ms=ms(limits.undo_call + MARGIN),
        undo_total_ms=ms(limits.undo_total),
        resolve_ms=ms(limits.resolve),
        held=held,
        after=after,
        ends_turn=tool.on_failure == "abort_turn",
    )
