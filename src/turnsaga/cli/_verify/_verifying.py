"""Goes through the ledger and compares each effect with what its vendor says."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict

from turnsaga.cli._session import Session
from turnsaga.cli._verify._asking import Answer, Vendors
from turnsaga.cli._verify._following import follow_up
from turnsaga.cli._verify._judging import OPEN, Said, Verdict, judge, remedy
from turnsaga.cli._verify._paging import Scope, pages
from turnsaga.errors import TurnSagaError
from turnsaga.ledger import State
from turnsaga.models import EffectRef
from turnsaga.store import EffectRow

__all__ = ["CantVerify", "Compared", "Scope", "Summary", "verify"]

_AT_ONCE: Final = 8
# An effect that moved while its vendor was asked is compared anew, so often at most.
_TRIES: Final = 3


class CantVerify(TurnSagaError):
    """The deployment's tools can't be opened, so no vendor can be asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the deployment's tools can't be opened ({reason}); see turnsaga doctor")
        self.reason = reason


class Compared(BaseModel):
    """One effect, what the ledger says of it, and what its vendor does; ``fixed`` is what --fix did."""

    model_config = ConfigDict(frozen=True)

    effect: str
    turn: str
    tenant: str
    user: str
    tool: str
    identity: str | None
    state: State
    verdict: Verdict
    vendor: str
    remedy: str
    fixed: str = ""
    at: datetime


class Summary(BaseModel):
    """How many effects were compared, and how they came out.

    ``checked`` is the sum of all the others but ``fixed``. ``more`` tells that --limit left some out.
    """

    model_config = ConfigDict(frozen=True)

    checked: int = 0
    agree: int = 0
    differ: int = 0
    cant_be_asked: int = 0
    open: int = 0
    unreachable: int = 0
    fixed: int = 0
    more: bool = False

    @property
    def exit_code(self) -> int:
        """0 if nothing differs, 1 if something does, 3 if vendors couldn't be asked."""
        return 1 if self.differ else 3 if self.unreachable else 0


async def verify(session: Session, scope: Scope, *, fix: bool) -> tuple[tuple[Compared, ...], Summary]:
    """Return what deserves a look (differences, open effects, silent vendors), and the whole in figures.

    Raises:
        CantVerify: the tools can't be opened.
    """
    lines: list[Compared] = []
    counts: Counter[Verdict] = Counter()
    more = False
    async with AsyncExitStack() as stack:
        try:
            tools = await stack.enter_async_context(session.deployment.open_tools())
        except TurnSagaError as error:
            raise CantVerify(str(error)) from error
        except Exception as error:
            # Only its type: a foreign error's text can hold credentials.
            raise CantVerify(type(error).__name__) from error
        vendors = Vendors(tools)
        async for batch in _batches(session, scope):
            left = len(batch) if scope.limit is None else scope.limit - counts.total()
            more = more or len(batch) > left
            for compared in await asyncio.gather(
                *(_compare(session, vendors, ref, fix=fix) for ref in batch[:left])
            ):
                counts[compared.verdict] += 1
                if compared.verdict not in {Verdict.AGREES, Verdict.CANT_BE_ASKED} or compared.fixed:
                    lines.append(compared)
    summary = Summary(
        checked=counts.total(),
        agree=counts[Verdict.AGREES],
        differ=counts[Verdict.DIFFERS],
        cant_be_asked=counts[Verdict.CANT_BE_ASKED],
        open=counts[Verdict.OPEN],
        unreachable=counts[Verdict.UNREACHABLE],
        fixed=sum(bool(line.fixed) for line in lines),
        more=more,
    )
    return tuple(lines), summary


async def _batches(session: Session, scope: Scope) -> AsyncIterator[tuple[EffectRef, ...]]:
    async for page in pages(session.reader, scope):
        for start in range(0, len(page), _AT_ONCE):
            yield page[start : start + _AT_ONCE]


async def _compare(session: Session, vendors: Vendors, ref: EffectRef, *, fix: bool) -> Compared:
    row = await session.store.load_effect(ref)
    answer = Answer(Said.NOTHING, row.at)
    for _ in range(_TRIES):
        answer = await _answer(vendors, row)
        now = await session.store.load_effect(ref)
        if now.version == row.version:
            return await _told(session, row, answer, fix=fix)
        row = now
    # Somebody is at it: the ledger's word and the vendor's are of different moments.
    return _line(row, Verdict.OPEN, answer)


async def _answer(vendors: Vendors, row: EffectRow) -> Answer:
    if row.state in OPEN and row.state is not State.UNKNOWN:
        return Answer(Said.NOTHING, row.at)
    return await vendors.ask(row)


async def _told(session: Session, row: EffectRow, answer: Answer, *, fix: bool) -> Compared:
    compared = _line(row, judge(row.state, answer.said), answer)
    if not fix or row.state is not State.UNKNOWN:
        return compared
    return compared.model_copy(update={"fixed": await follow_up(session, row, answer)})


def _line(row: EffectRow, verdict: Verdict, answer: Answer) -> Compared:
    said = ": ".join(filter(None, (answer.said.value, answer.why)))
    return Compared(
        effect=row.effect,
        turn=row.turn,
        tenant=row.tenant,
        user=row.user,
        tool=row.tool,
        identity=row.identity,
        state=row.state,
        verdict=verdict,
        vendor=said,
        remedy=remedy(row.state, verdict, row.system),
        at=row.at,
    )
