"""When effects are committed, and who may ask for what.

A worker writes the cards of its tools into the ledger when it starts. So a web tier checks what a start
asks for without importing a tool.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from turnsaga.errors import PolicyRefused
from turnsaga.tools._declare import AVAILABLE_POLICIES, CommitPolicy

__all__ = ["ToolCard", "check_policies", "checked_policy", "commits_at_once"]


class ToolCard(BaseModel):
    """What is known of a tool outside its worker. ``reversible`` is None for a read-only one."""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    system: str | None = None
    reversible: bool | None = None
    commits: str | None = None


def check_policies(cards: Mapping[str, ToolCard], policies: Mapping[str, str]) -> dict[str, CommitPolicy]:
    """Return the policies that a start asks for, checked against the tools.

    Raises:
        PolicyRefused: no such tool or policy, one that this version doesn't carry out, or ``immediate``
            without ``!`` for a tool whose effect can't be undone.
    """
    checked: dict[str, CommitPolicy] = {}
    for name, word in policies.items():
        card = cards.get(name)
        if card is None or card.reversible is None:
            known = ", ".join(sorted(card.name for card in cards.values() if card.reversible is not None))
            raise PolicyRefused(
                name, word, f"there is no side-effecting tool of that name; there are {known or 'none'}"
            )
        checked[name] = checked_policy(name, word, reversible=card.reversible)
    return checked


def checked_policy(tool: str, word: str, *, reversible: bool) -> CommitPolicy:
    """Return the policy of that name for a tool that it fits.

    Raises:
        PolicyRefused: see ``check_policies``.
    """
    try:
        policy = CommitPolicy(word)
    except ValueError:
        raise PolicyRefused(
            tool, str(word), f"there is no such policy; there are {', '.join(CommitPolicy)}"
        ) from None
    if policy not in AVAILABLE_POLICIES:
        raise PolicyRefused(
            tool, policy, "this version commits at once only; use 'immediate' or 'immediate!'"
        )
    if policy is CommitPolicy.IMMEDIATE and not reversible:
        raise PolicyRefused(tool, policy, "its effect can't be undone; ask for it by name with 'immediate!'")
    return policy


def commits_at_once(card: ToolCard, policies: Mapping[str, str]) -> bool:
    """Tell whether the tool's effects are committed at once, by the start's word or by default.

    A reversible tool's are, where nobody says otherwise. An irreversible one's are only if somebody
    asked for that by name: its call is refused otherwise, and says why.
    """
    word = policies.get(card.name) or card.commits or (CommitPolicy.IMMEDIATE if card.reversible else None)
    return word is not None and CommitPolicy(word) in AVAILABLE_POLICIES
