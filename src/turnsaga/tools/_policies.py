"""When effects are committed, and who may ask for what.

A policy is written as a word with an optional delay: ``confirmed``, ``turn_end``, ``immediate``,
``immediate!``, ``off``; ``turn_end+10s`` holds the effect ten seconds longer, in which an abort releases
it. A worker writes the cards of its tools, with their policies, into the ledger when it starts. So a web
tier checks what a start asks for without importing a tool.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final

from pydantic import BaseModel, ConfigDict

from turnsaga.errors import PolicyRefused

__all__ = [
    "CommitPolicy",
    "Policy",
    "ToolCard",
    "call_policy",
    "check_policies",
    "default_policy",
    "loosened",
    "read_policy",
]

_WRITTEN: Final = re.compile(r"(?P<word>[a-z_]+!?)(?:\+(?P<count>[0-9]{1,9})(?P<unit>ms|s|m|h))?", re.ASCII)
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
}
_LONGEST_DELAY: Final = timedelta(hours=24)


class CommitPolicy(StrEnum):
    """When a tool's effect is committed. ``!`` asks by name for an irreversible one to commit at once."""

    CONFIRMED = "confirmed"
    TURN_END = "turn_end"
    IMMEDIATE = "immediate"
    IMMEDIATE_BY_NAME = "immediate!"
    OFF = "off"


# From loose to strict. What a policy lets happen without asking, every looser one does too.
_STRICTNESS: Final = {
    CommitPolicy.IMMEDIATE_BY_NAME: 0,
    CommitPolicy.IMMEDIATE: 0,
    CommitPolicy.TURN_END: 1,
    CommitPolicy.CONFIRMED: 2,
    CommitPolicy.OFF: 3,
}


@dataclass(frozen=True)
class Policy:
    """When an effect is committed; ``delay`` is how much longer it is held then."""

    commits: CommitPolicy
    delay: timedelta = timedelta(0)

    def __str__(self) -> str:
        ms = self.delay // timedelta(milliseconds=1)
        return f"{self.commits}+{ms}ms" if ms else str(self.commits)

    @property
    def holds(self) -> bool:
        """True if an effect waits, prepared, before its gate may open."""
        at_once = {CommitPolicy.IMMEDIATE, CommitPolicy.IMMEDIATE_BY_NAME}
        return self.commits not in at_once or self.delay > timedelta(0)

    def looser_than(self, other: "Policy") -> bool:
        """Tell whether this one lets something happen earlier, or without a question that ``other`` asks."""
        mine, theirs = _STRICTNESS[self.commits], _STRICTNESS[other.commits]
        return mine < theirs or (mine == theirs and self.delay < other.delay)


class ToolCard(BaseModel):
    """What is known of a tool outside its worker. ``reversible`` is None for a read-only one.

    ``commits`` is the deployment's policy for the tool.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    system: str | None = None
    reversible: bool | None = None
    commits: str | None = None


def default_policy(*, reversible: bool) -> Policy:
    """Return the policy of a tool that names none: an irreversible one asks the user."""
    return Policy(CommitPolicy.TURN_END if reversible else CommitPolicy.CONFIRMED)


@lru_cache(maxsize=1024)
def read_policy(tool: str, written: str, *, reversible: bool) -> Policy:
    """Return the policy that is written, for a tool that it fits.

    Raises:
        PolicyRefused: no such policy, a delay that can't be, or ``immediate`` without ``!`` for a tool
            whose effect can't be undone.
    """
    found = _WRITTEN.fullmatch(written)
    words = ", ".join(CommitPolicy)
    if found is None or found["word"] not in set(CommitPolicy):
        raise PolicyRefused(
            tool, written, f"there is no such policy; there are {words}, and all but 'off' take a delay "
            "such as 'turn_end+10s' (ms, s, m or h)"
        )  # fmt: skip
    commits = CommitPolicy(found["word"])
    delay = int(found["count"]) * _UNITS[found["unit"]] if found["count"] else timedelta(0)
    if commits is CommitPolicy.OFF and found["count"]:
        raise PolicyRefused(tool, written, "what is off has no delay; leave it out")
    if delay > _LONGEST_DELAY:
        raise PolicyRefused(tool, written, "the delay is longer than a day; give at most 24h")
    if commits is CommitPolicy.IMMEDIATE and not reversible:
        raise PolicyRefused(tool, written, "its effect can't be undone; ask for it by name with 'immediate!'")
    return Policy(commits, delay)


def check_policies(cards: Mapping[str, ToolCard], policies: Mapping[str, str]) -> dict[str, Policy]:
    """Return the policies that a start asks for, checked against the tools.

    Raises:
        PolicyRefused: no such tool, or see ``read_policy``.
    """
    checked: dict[str, Policy] = {}
    for name, written in policies.items():
        card = cards.get(name)
        if card is None or card.reversible is None:
            known = ", ".join(sorted(card.name for card in cards.values() if card.reversible is not None))
            raise PolicyRefused(
                name, written, f"there is no side-effecting tool of that name; there are {known or 'none'}"
            )
        checked[name] = read_policy(name, written, reversible=card.reversible)
    return checked


def loosened(cards: Mapping[str, ToolCard], policies: Mapping[str, Policy]) -> Mapping[str, Policy]:
    """Return those of a start's policies that are looser than the deployment's."""
    return {
        name: policy
        for name, policy in policies.items()
        if policy.looser_than(_of_card(cards[name], cards[name].commits))
    }


def call_policy(card: ToolCard, policies: Mapping[str, str], *, wanted_again: bool = False) -> Policy:
    """Return the policy of one call: the start's word, else the deployment's.

    ``wanted_again`` is for a call that wants what was done once in this turn to be done once more: the
    user is asked, whatever the policy.
    """
    policy = _of_card(card, policies.get(card.name) or card.commits)
    if wanted_again and policy.commits is not CommitPolicy.OFF:
        return Policy(CommitPolicy.CONFIRMED, policy.delay)
    return policy


def _of_card(card: ToolCard, written: str | None) -> Policy:
    reversible = card.reversible is True
    if written is None:
        return default_policy(reversible=reversible)
    return read_policy(card.name, written, reversible=reversible)
