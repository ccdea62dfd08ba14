"""``python -m tests.e2e.crashing_worker``: our worker, whose attempts stand still where their names say so.

It is ``python -m workers run`` with two changes. It has tools of more kinds than our deployment. And if
``CRASH_MARKERS`` names a folder, an attempt on a thing whose name ends with ``.at3`` stops for ever once it
has come to point 3, and leaves a file of that name. Points 4, 5, 10 and 11 aren't in the worker: what it has
sent, or is to be answered, is held on the wire (``held_wire.py``).
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final
from unittest.mock import patch

from activities.deployment import deployment_tools
from activities.settings import VendorSettings
from settings.reading import exit_code, read_settings
from settings.shared import LedgerSettings
from tests.e2e.crash_cells import Point
from turnsaga.errors import TurnSagaError
from turnsaga.models import CallRef, EffectRef
from turnsaga.store import (
    CallContext,
    Claim,
    CommitOutcome,
    EffectRow,
    NewEffect,
    Refreshed,
    SqlStore,
    UndoClaim,
    UndoOutcome,
    UndoRecorded,
    Verdict,
)
from turnsaga.tools import Limits, Once, Tools
from workers.run import run
from workers.settings import WorkerSettings

__all__ = ["LANDS_WITHIN_S", "MARKERS", "crash_tools"]

MARKERS: Final = "CRASH_MARKERS"
LANDS_WITHIN_S: Final = "CRASH_LANDS_WITHIN_S"


@asynccontextmanager
async def crash_tools(vendors: VendorSettings) -> AsyncIterator[Tools]:
    """Give one tool of each kind, over the vendors that the settings name."""
    async with deployment_tools(vendors) as ours:
        charge, create = ours.effect("charge_card"), ours.effect("create_record")
        ticket = replace(create, name="open_ticket", undo_repeat=Once())
        note = replace(create, name="file_note", undo_repeat=Once(), lookup=None, check_undone=None)
        tools = (charge, create, ticket, note, ours.effect("post_message"))
        # As the deployment's, but that what is lost can be told sooner.
        landing = timedelta(seconds=int(os.environ.get(LANDS_WITHIN_S, "8")))
        limits = Limits(send_by=timedelta(seconds=5), landing_window=landing)
        yield Tools([replace(tool, limits=limits) for tool in tools])


class FreezingStore(SqlStore):
    """The ledger, at whose transactions an attempt stands still."""

    def __init__(self, url: str, markers: Path) -> None:
        super().__init__(url)
        self._markers = markers

    async def claim_commit(
        self, ref: CallRef, new: NewEffect | None, *, gate: bool = True, refreshed: Refreshed | None = None
    ) -> Claim:
        if new is not None:
            await self._reached(Point.BEFORE_PREPARE, new.identity)
        return await self._claimed(await super().claim_commit(ref, new, gate=gate, refreshed=refreshed))

    async def draft_and_claim(
        self, ref: CallRef, draft: Callable[[CallContext], NewEffect], *, gate: bool = True
    ) -> Claim:
        context = await self.call_context(ref)
        if context.effect is None and not context.fenced:
            await self._reached(Point.BEFORE_PREPARE, draft(context).identity)
        return await self._claimed(await super().draft_and_claim(ref, draft, gate=gate))

    async def record_commit(
        self, ref: EffectRef, token: int, outcome: CommitOutcome, *, claimed: EffectRow | None = None
    ) -> EffectRow:
        await self._reached(Point.ANSWERED, (await self.load_effect(ref)).identity)
        row = await super().record_commit(ref, token, outcome, claimed=claimed)
        await self._reached(Point.AFTER_OUTCOME, row.identity)
        return row

    async def claim_undo(self, ref: EffectRef) -> UndoClaim:
        await self._reached(Point.BETWEEN_UNDOS, (await self.load_effect(ref)).identity)
        claim = await super().claim_undo(ref)
        if claim.sends:
            await self._reached(Point.AFTER_UNDO_CLAIM, claim.row.identity)
        return claim

    async def record_undo(
        self, ref: EffectRef, token: int, outcome: UndoOutcome, *, claimed: EffectRow | None = None
    ) -> UndoRecorded:
        await self._reached(Point.UNDO_ANSWERED, (await self.load_effect(ref)).identity)
        recorded = await super().record_undo(ref, token, outcome, claimed=claimed)
        await self._reached(Point.AFTER_UNDO_OUTCOME, recorded.row.identity)
        return recorded

    async def _claimed(self, claim: Claim) -> Claim:
        point = {Verdict.HELD: Point.AFTER_PREPARE, Verdict.SEND: Point.AFTER_CLAIM}.get(claim.verdict)
        if point is not None and claim.row is not None:
            await self._reached(point, claim.row.identity)
        return claim

    async def _reached(self, point: Point, identity: str | None) -> None:
        if identity is not None and identity.endswith(f".at{int(point)}"):
            (self._markers / identity.rpartition("/")[2]).touch()
            await asyncio.Event().wait()


def _ledger(settings: LedgerSettings) -> SqlStore:
    url, markers = settings.database.get_secret_value(), os.environ.get(MARKERS)
    return SqlStore(url) if markers is None else FreezingStore(url, Path(markers))


def _run() -> int:
    settings, vendors = read_settings(WorkerSettings), read_settings(VendorSettings)
    with patch("workers.run.deployment_tools", crash_tools), patch("workers.run.ledger", _ledger):
        return asyncio.run(run(settings, vendors))


if __name__ == "__main__":
    sys.exit(exit_code("crashing worker", _run, TurnSagaError))
