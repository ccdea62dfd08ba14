"""Runs checks beside each other: each has its own time, and none can take another down."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pydantic import BaseModel, ConfigDict

from turnsaga.deployment import Check, Finding, Status

__all__ = ["Checked", "Unasked", "run_checks", "worst"]

_ORDER: Final = (Status.OK, Status.WARN, Status.FAIL)


class Unasked(Exception):  # not an error: it ends a check
    """The check can't be made before another one is well; ``see`` names that one."""

    def __init__(self, why: str, see: str) -> None:
        super().__init__(why)
        self.why = why
        self.see = see


class Checked(BaseModel):
    """One check's answer: how it came out, what is so, and what to do."""

    model_config = ConfigDict(frozen=True)

    check: str
    status: Status
    what: str
    remedy: str


async def run_checks(checks: Sequence[Check], *, within: timedelta) -> tuple[Checked, ...]:
    """Return each check's answer in the order of the checks, none later than ``within``."""
    findings = await asyncio.gather(*(_run(check, within) for check in checks))
    return tuple(
        Checked(check=check.name, status=finding.status, what=finding.what, remedy=finding.remedy)
        for check, finding in zip(checks, findings, strict=True)
    )


def worst(checked: Sequence[Checked]) -> Status:
    """Return the worst status; ``OK`` if there is none."""
    return max((each.status for each in checked), key=_ORDER.index, default=Status.OK)


async def _run(check: Check, within: timedelta) -> Finding:
    try:
        async with asyncio.timeout(within.total_seconds()):
            return await check.run()
    except TimeoutError:
        return Finding.fail(
            f"no answer within {within.total_seconds():g} s", "see that its address is right and not blocked"
        )
    except Unasked as unasked:
        return Finding.warn(f"not checked: {unasked.why}", f"see {unasked.see}")
    except Exception as error:  # noqa: BLE001  # a deployment's own check may raise anything
        # Only its type: a foreign error's text can hold credentials.
        return Finding.fail(
            f"the check itself failed ({type(error).__name__})",
            "ask what it asks by hand, and mend the check",
        )
