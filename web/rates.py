"""How often one user may ask, outside development: a bucket for each user and kind of request.

Aborts have none: whoever wants to stop what an agent does must get through, above all when a page that
has gone wild has used up everything else. A repeated abort changes nothing and costs one transaction.
"""

import math
from collections import OrderedDict
from enum import StrEnum
from typing import Annotated, Final

from aiolimiter import AsyncLimiter
from fastapi import Depends, Request

from turnsaga.models import Principal
from web.identity import Caller
from web.problems import Problem, Word
from web.settings import WebSettings

__all__ = ["Kind", "Rates", "Reader", "Starter", "Writer"]

_USERS: Final = 10_000
_MINUTE_S: Final = 60


class Kind(StrEnum):
    """Kinds of requests that are counted apart."""

    STARTS = "starts"
    WRITES = "writes"
    READS = "reads"


class Rates:
    """Buckets of this process. A full one holds a minute's worth, so that a burst is no offence.

    At most so many users' buckets are kept; whoever asked longest ago finds a new, full one.
    """

    def __init__(self, settings: WebSettings, *, users: int = _USERS) -> None:
        limits = {
            Kind.STARTS: settings.starts_per_min,
            Kind.WRITES: settings.writes_per_min,
            Kind.READS: settings.reads_per_min,
        }
        limited = settings.env == "production"
        self._limits = {kind: limit for kind, limit in limits.items() if limited and limit > 0}
        self._users = users
        self._buckets: OrderedDict[tuple[str, str], dict[Kind, AsyncLimiter]] = OrderedDict()

    @property
    def users(self) -> int:
        """How many users' buckets are kept now."""
        return len(self._buckets)

    async def take(self, who: Principal, kind: Kind) -> None:
        """Count one request.

        Raises:
            Problem: the user's bucket is empty; says when to ask again.
        """
        limit = self._limits.get(kind)
        if limit is None:
            return
        bucket = self._of(who).setdefault(kind, AsyncLimiter(limit, _MINUTE_S))
        if not bucket.has_capacity():
            raise _refused(kind, limit)
        # Nothing is awaited in between, so this doesn't wait.
        await bucket.acquire()

    def _of(self, who: Principal) -> dict[Kind, AsyncLimiter]:
        name = (who.tenant, who.user)
        own = self._buckets.setdefault(name, {})
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._users:
            self._buckets.popitem(last=False)
        return own


def _refused(kind: Kind, limit: int) -> Problem:
    # The bucket lacks less than one request, which this long fills.
    wait_s = math.ceil(_MINUTE_S / limit)
    return Problem(
        Word.RATE_LIMITED,
        f"a user has {limit} {kind} a minute here, and yours are used up; ask again in {wait_s} s "
        "(stopping a turn is never limited)",
        members={"kind": kind, "per_minute": limit},
        headers={"retry-after": str(wait_s)},
    )


async def _take(request: Request, who: Principal, kind: Kind) -> Principal:
    rates: Rates = request.app.state.tier.rates
    await rates.take(who, kind)
    return who


async def _starter(request: Request, who: Caller) -> Principal:
    return await _take(request, who, Kind.STARTS)


async def _writer(request: Request, who: Caller) -> Principal:
    return await _take(request, who, Kind.WRITES)


async def _reader(request: Request, who: Caller) -> Principal:
    return await _take(request, who, Kind.READS)


Starter = Annotated[Principal, Depends(_starter)]
"""An argument of a route that starts turns: who acts, once that is counted."""
Writer = Annotated[Principal, Depends(_writer)]
"""As ``Starter``, of a route that changes something else."""
Reader = Annotated[Principal, Depends(_reader)]
"""As ``Starter``, of a route that only reads."""
