"""Puts the checks of a deployment together, and asks them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from turnsaga.cli._doctor._ledger import LedgerChecks
from turnsaga.cli._doctor._packages import package_checks
from turnsaga.cli._doctor._running import Checked, run_checks
from turnsaga.cli._doctor._temporal import TemporalChecks, judge_engine
from turnsaga.cli._doctor._tools import ToolChecks, judge_cards, judge_needed
from turnsaga.cli._questions import engine_name, open_effects_by_tool, tool_cards
from turnsaga.deployment import Check, Deployment, Finding

__all__ = ["examine"]

_WITHIN: Final = timedelta(seconds=10)


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def examine(
    deployment: Deployment, *, within: timedelta = _WITHIN, clock: Callable[[], datetime] = _utc_now
) -> tuple[Checked, ...]:
    """Return what each check of a deployment found; none changes anything or outlasts ``within``."""
    tools = ToolChecks(deployment.open_tools)
    await tools.open()
    ledger = LedgerChecks(deployment.database, clock=clock)
    temporal = TemporalChecks(deployment.task_queue, clock=clock)

    async def engine() -> Finding:
        known = await (await ledger.reader()).ask(engine_name)
        return judge_engine(known, await temporal.engine(), adopts=deployment.env == "development")

    async def needed() -> Finding:
        return judge_needed(await (await ledger.reader()).ask(open_effects_by_tool), tools.opened())

    async def known() -> Finding:
        return judge_cards(await (await ledger.reader()).ask(tool_cards), tools.opened())

    extras = ("cli", "postgres") if deployment.database.startswith("postgresql") else ("cli",)
    checks = (
        *package_checks(extras=extras),
        *temporal.all(),
        *ledger.all(),
        Check("ledger.engine", engine),
        *tools.all(),
        Check("tools.needed", needed),
        Check("tools.workers", known),
        *deployment.checks,
    )
    return await run_checks(checks, within=within)
