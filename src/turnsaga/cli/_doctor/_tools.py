"""What is said of a deployment's tools. The functions that judge are pure."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from turnsaga.cli._doctor._running import Unasked
from turnsaga.deployment import Check, Finding
from turnsaga.errors import DeclarationError, TurnSagaError
from turnsaga.tools import EffectTool, Keyed, Repeat, Tool, ToolCard, Tools

__all__ = ["ToolChecks", "judge_cards", "judge_needed", "judge_tool"]

_OPEN_WITHIN_S: Final = 8.0


class ToolChecks:
    """Checks of the tools that ``open_tools`` gives; they are opened once, and closed again at once."""

    def __init__(self, open_tools: Callable[[], AbstractAsyncContextManager[Tools]]) -> None:
        self._open_tools = open_tools
        self._opened: Tools | None = None
        self._failure = ""

    async def open(self) -> None:
        """Learn the tools; a deployment that can't give them is told by ``declared``."""
        try:
            async with asyncio.timeout(_OPEN_WITHIN_S), self._open_tools() as tools:
                self._opened = tools
        except DeclarationError as error:
            self._failure = f"{error.problem} (tool {error.tool!r}); {error.remedy}"
        except TurnSagaError as error:
            self._failure = str(error)
        except TimeoutError:
            self._failure = f"they didn't open within {_OPEN_WITHIN_S:g} s"
        except Exception as error:  # noqa: BLE001  # a deployment's own code may raise anything
            # Only its type: a foreign error's text can hold credentials.
            self._failure = f"opening them fails with {type(error).__name__}"

    def all(self) -> tuple[Check, ...]:
        """Return a check for all tools together, and one for each."""
        tools = self._opened or ()
        return (Check("tools.declared", self.declared), *(_check(tool) for tool in tools))

    async def declared(self) -> Finding:
        """Say whether the deployment's tools can be opened at all."""
        if self._opened is None:
            return Finding.fail(self._failure, "mend the deployment's tools: no worker starts like this")
        count = len(list(self._opened))
        if not count:
            return Finding.warn("the deployment has no tools", "give Tools some, unless turns only talk")
        return Finding.ok(f"{count} declared")

    def opened(self) -> Tools:
        """Return the tools.

        Raises:
            Unasked: they can't be opened.
        """
        if self._opened is None:
            raise Unasked("the deployment's tools can't be opened", "tools.declared")
        return self._opened


def judge_tool(tool: Tool) -> Finding:
    """Return what a tool declares, and what is risky about that."""
    if not isinstance(tool, EffectTool):
        return Finding.ok("read-only")
    said = f"{tool.system}: {', '.join(_said(tool))}"
    risks = _risks(tool)
    if risks:
        return Finding.warn(f"{said}. Risky: {'; '.join(what for what, _ in risks)}", risks[0][1])
    return Finding.ok(said)


def judge_needed(needed: Mapping[str, int], tools: Tools) -> Finding:
    """Return whether each tool whose effects are still open is declared as one with effects."""
    have = {tool.name for tool in tools if isinstance(tool, EffectTool)}
    lost = {name: count for name, count in sorted(needed.items()) if name not in have}
    if lost:
        named = ", ".join(f"{count} of {name!r}" for name, count in lost.items())
        return Finding.fail(
            f"open effects whose tool the deployment no longer has: {named}",
            "keep a worker that has it until they are settled: nobody else can look them up or undo them",
        )
    return Finding.ok(f"{sum(needed.values())} open effects, each of a tool that is there")


def judge_cards(cards: Mapping[str, ToolCard], tools: Tools) -> Finding:
    """Return whether the tools that a worker last wrote into the ledger are these."""
    own = tools.cards()
    if not cards:
        return Finding.warn("no worker has written its tools into the ledger yet", "start a worker")
    changed = sorted(name for name in own.keys() | cards.keys() if own.get(name) != cards.get(name))
    if changed:
        return Finding.warn(
            f"the worker that started last has other tools than this deployment: {', '.join(changed)}",
            "deploy one version to all workers, or name the deployment that they run",
        )
    return Finding.ok("the worker that started last has these tools")


def _check(tool: Tool) -> Check:
    async def look() -> Finding:
        return judge_tool(tool)

    return Check(f"tools.{tool.name}", look)


def _said(tool: EffectTool[Any]) -> list[str]:
    default = "immediate by default" if tool.reversible else "none, so only if asked for by name"
    return [
        "reversible" if tool.reversible else f"irreversible ({tool.irreversible_because})",
        _repeat(tool.repeat),
        "look-up" if tool.lookup is not None else "no look-up",
        f"policy {tool.commits or default}",
    ]


def _risks(tool: EffectTool[Any]) -> list[tuple[str, str]]:
    """Return each risk with what would take it away, the gravest first."""
    found: list[tuple[str, str]] = []
    if tool.lookup is None and not tool.keyed:
        found.append(
            (
                "after a lost answer nobody can find out what it did"
                + ("" if tool.reversible else ", nor undo it"),
                "give it a lookup, or declare Keyed if its system honours Idempotency-Key",
            )
        )
    if not tool.reversible and tool.commits is not None:
        found.append(
            ("it commits without being asked for by name", "drop its policy, so that a start must name it")
        )
    if tool.reversible and not isinstance(tool.undo_repeat, Keyed) and tool.check_undone is None:
        found.append(
            (
                "an undo whose answer is lost is never sent again nor read back",
                "give it check_undone, or declare undo_repeat=Keyed if its system honours the key",
            )
        )
    return found


def _repeat(repeat: Repeat) -> str:
    if not isinstance(repeat, Keyed):
        return "sent once"
    hours = repeat.lifetime.total_seconds() / 3600
    return f"keyed for {hours:g} h"
