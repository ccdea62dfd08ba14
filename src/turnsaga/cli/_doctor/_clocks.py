"""Clocks. Pure: instants come in, a finding goes out.

A claim's "send by" and the instant from which on a lost request can't land any more are written by the
clock of one worker and read by that of another. So all machines that write the ledger must agree to
well within those spans, which are seconds.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from turnsaga.deployment import Finding

__all__ = ["FAIL_ABOVE", "WARN_ABOVE", "Reading", "judge_ahead", "judge_reading"]

WARN_ABOVE: Final = timedelta(seconds=1)
FAIL_ABOVE: Final = timedelta(seconds=5)
_REMEDY: Final = "have NTP (chrony, systemd-timesyncd) set the clocks, of workers and web tiers above all"


@dataclass(frozen=True)
class Reading:
    """Another machine's clock, read between two instants of ours."""

    before: datetime
    theirs: datetime
    after: datetime

    @property
    def skew(self) -> timedelta:
        """How far theirs is ahead of ours at least, negative if behind; zero if ours can't tell."""
        if self.theirs > self.after:
            return self.theirs - self.after
        return min(self.theirs - self.before, timedelta(0))


def judge_reading(whose: str, reading: Reading) -> Finding:
    """Return how a clock that can be asked agrees with this machine's."""
    skew = reading.skew
    if abs(skew) <= WARN_ABOVE:
        within = max(reading.after - reading.before, timedelta(milliseconds=1))
        return Finding.ok(f"{whose}'s clock agrees with this machine's to {_seconds(abs(skew) + within)}")
    direction = "ahead of" if skew > timedelta(0) else "behind"
    what = f"{whose}'s clock is {_seconds(abs(skew))} {direction} this machine's"
    return Finding.fail(what, _REMEDY) if abs(skew) > FAIL_ABOVE else Finding.warn(what, _REMEDY)


def judge_ahead(whose: str, newest: datetime | None, now: datetime) -> Finding:
    """Return whether the newest instant that somebody wrote lies in the future of ``now``.

    That is proof of a clock that is ahead. One that is behind can't be seen in this way.
    """
    if newest is None:
        return Finding.ok(f"{whose} has written no instant yet, so its clock can't be told")
    ahead = newest - now
    if ahead <= WARN_ABOVE:
        return Finding.ok(f"nothing that {whose} wrote lies in the future")
    what = f"{whose} wrote an instant that is {_seconds(ahead)} in the future"
    return Finding.fail(what, _REMEDY) if ahead > FAIL_ABOVE else Finding.warn(what, _REMEDY)


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.3f} s"
