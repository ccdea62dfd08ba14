"""Asks a vendor about one effect, by the tool's own functions, the stored request and the stored key."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from turnsaga.attempts import bounded, started
from turnsaga.cli._verify._judging import Said
from turnsaga.errors import ToolOutcome
from turnsaga.ledger import State
from turnsaga.store import EffectRow, load_object
from turnsaga.tools import Call, EffectTool, Missing, Running, SearchResult, Tools

__all__ = ["Answer", "Vendors"]

# A vendor that was silent so often in a row isn't waited for any more.
_SILENT: Final = 3


@dataclass(frozen=True)
class Answer:
    """What a vendor said, and when it was asked; ``found`` is the look-up's own answer."""

    said: Said
    asked_at: datetime
    why: str = ""
    found: SearchResult | None = None


class Vendors:
    """The downstream systems of a deployment's tools. Nothing is sent but questions."""

    def __init__(self, tools: Tools) -> None:
        self._tools = {tool.name: tool for tool in tools if isinstance(tool, EffectTool)}
        self._silent: Counter[str] = Counter()

    async def ask(self, row: EffectRow) -> Answer:
        """Return what the vendor says of an effect."""
        asked_at = datetime.now(UTC)
        tool = self._tools.get(row.tool)
        if tool is None:
            return Answer(Said.NOTHING, asked_at, why="this deployment has no such tool")
        if tool.lookup is None and (tool.check_undone is None or row.receipt is None):
            return Answer(Said.NOTHING, asked_at)
        if self._silent[row.system] >= _SILENT:
            return Answer(Said.SILENT, asked_at, why="it gave no answer before")
        try:
            answer = await _asked(tool, row, asked_at)
        except ToolOutcome as error:
            # It answered, and what it answered says nothing about the effect.
            return Answer(Said.NOTHING, asked_at, why=type(error).__name__)
        except Exception as error:  # noqa: BLE001  # a tool's own code may raise anything
            self._silent[row.system] += 1
            # Only its type: a foreign error's text can hold credentials.
            return Answer(Said.SILENT, asked_at, why=type(error).__name__)
        del self._silent[row.system]
        return answer


async def _asked(tool: EffectTool[Any], row: EffectRow, asked_at: datetime) -> Answer:
    request = load_object(row.request)
    receipt = None if row.receipt is None else load_object(row.receipt)
    found: SearchResult | None = None
    if tool.lookup is not None:
        within = tool.limits.call
        answer: SearchResult = await bounded(
            started(tool.lookup, request, _call(row, row.key, within)), within=within
        )
        found = answer
        if isinstance(answer, Missing):
            return Answer(_missing(row, asked_at), asked_at, found=found)
        if isinstance(answer, Running):
            return Answer(Said.RUNNING, asked_at, found=found)
        receipt = answer.receipt if receipt is None else receipt
    if tool.check_undone is None or receipt is None:
        return Answer(Said.APPLIED, asked_at, found=found)
    within = tool.limits.undo_call
    gone: bool = await bounded(
        started(tool.check_undone, request, receipt, _call(row, row.undo_key, within)), within=within
    )
    return Answer(Said.GONE if gone else Said.STANDS, asked_at, found=found)


def _missing(row: EffectRow, asked_at: datetime) -> Said:
    # A vendor's search lags behind, and a request may be under way: "not found" proves something only
    # after the landing window.
    settled = row.at + timedelta(milliseconds=row.landing_ms)
    if row.state is State.UNKNOWN:
        settled = row.wire_until or asked_at
    return Said.MISSING if row.sends == 0 or asked_at >= settled else Said.TOO_EARLY


def _call(row: EffectRow, key: str, within: timedelta) -> Call:
    return Call(
        tenant=row.tenant,
        user=row.user,
        turn=row.turn,
        effect=row.effect,
        key=key,
        effect_key=row.key,
        remaining=within,
    )
