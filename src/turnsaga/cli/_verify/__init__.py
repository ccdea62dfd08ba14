"""``turnsaga verify``: the ledger held against the vendors, effect by effect."""

from turnsaga.cli._verify._judging import Said, Verdict, judge
from turnsaga.cli._verify._verifying import CantVerify, Compared, Scope, Summary, verify

__all__ = ["CantVerify", "Compared", "Said", "Scope", "Summary", "Verdict", "judge", "verify"]
