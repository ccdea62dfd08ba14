"""For tests of tools, turns and deployments: an oracle, and a downstream system that misbehaves on order.

The oracle holds a ledger against what the systems themselves say happened. It counts effects per business
identity, never per key: a second charge under a second key is what it has to find.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from typing import Any

from pydantic import BaseModel, ConfigDict

from turnsaga.errors import NotApplied
from turnsaga.ledger import State
from turnsaga.models import EffectView, TurnEvent
from turnsaga.tools import (
    Call,
    Committed,
    EffectTool,
    Found,
    JsonObject,
    Keyed,
    Limits,
    Missing,
    SearchResult,
    Undone,
)

__all__ = [
    "OPEN",
    "STANDS",
    "FakeSystem",
    "Misbehaviour",
    "Note",
    "TrueEffect",
    "Truth",
    "differences",
    "disorder",
]


class TrueEffect(BaseModel):
    """What stands of one business identity, as its system says."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    system: str
    identity: str
    standing: int
    applied: int
    undone: int


class Truth(BaseModel):
    """What really happened in all systems."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    effects: tuple[TrueEffect, ...] = ()


STANDS = frozenset({State.COMMITTED, State.STANDING, State.COMPENSATION_FAILED})
"""States of which the ledger says: it is applied downstream."""
OPEN = frozenset({State.COMMITTING, State.ACCEPTED, State.UNKNOWN, State.COMPENSATING})
"""States of which the ledger says that it doesn't know, or that it is at it."""


def differences(effects: Iterable[EffectView], truth: Truth, systems: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each business identity on which ledger and truth disagree; none is agreement.

    ``systems`` gives each tool's downstream system. An identity with an effect that the ledger shows as
    open is left out: the ledger claims nothing of it. One whose undo failed may have been undone after
    all, so it may stand once less.
    """
    said: Counter[tuple[str, str]] = Counter()
    less: Counter[tuple[str, str]] = Counter()
    claims_nothing: set[tuple[str, str]] = set()
    for effect in effects:
        place = (systems[effect.tool], effect.identity or "")
        said[place] += effect.state in STANDS
        less[place] += effect.state is State.COMPENSATION_FAILED
        if effect.state in OPEN:
            claims_nothing.add(place)
    true = {(effect.system, effect.identity): effect.standing for effect in truth.effects}
    return tuple(
        f"{system} {identity}: the ledger says that {said[system, identity]} stand, and "
        f"{true.get((system, identity), 0)} do"
        for system, identity in sorted(set(said) | set(true))
        if (system, identity) not in claims_nothing
        and not said[system, identity] - less[system, identity]
        <= true.get((system, identity), 0)
        <= said[system, identity]
    )


def disorder(events: Sequence[TurnEvent]) -> tuple[str, ...]:
    """Return a sentence for each thing in a turn's events that must not be.

    Numbers that aren't contiguous from 1, a gate or a prepared effect after the fence, undos out of the
    reverse order of commit, an undo that begins before the one before it ended, and anything of the turn
    after its last word.
    """
    found: list[str] = []
    numbers = [event.number for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"numbers aren't contiguous from 1: {numbers}")
    fenced = False
    undoing: str | None = None
    last_order: int | None = None
    committing: set[str] = set()
    for event in events:
        effect = str(event.data.get("effect", ""))
        if event.kind == "turn_aborting":
            fenced = True
        elif event.kind == "tool_committing":
            if fenced and effect not in committing:
                found.append(f"{event.number}: a gate opens after the fence ({effect})")
            committing.add(effect)
        elif event.kind == "tool_committed":
            # One that commits after an undo has begun is undone on its own, whatever its place.
            last_order = None
        elif event.kind == "tool_prepared" and fenced:
            found.append(f"{event.number}: prepared after the fence ({effect})")
        elif event.kind == "tool_compensating":
            if undoing not in {None, effect}:
                found.append(f"{event.number}: an undo begins before {undoing} is done with")
            order = event.data.get("order")
            if undoing is None and last_order is not None and order is not None and order > last_order:
                found.append(f"{event.number}: undone out of order, {order} after {last_order}")
            undoing, last_order = effect, order if order is not None else last_order
        elif event.kind in {"tool_compensated", "tool_attention", "tool_standing"} and undoing == effect:
            undoing = None
    return tuple(found)


class Note(BaseModel):
    """Arguments of the fake tools: what is noted down, under which identity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    identity: str
    text: str = ""


Misbehaviour = Callable[[str, Call], Exception | None]
"""Asked before each call with its phase ("commit", "undo", "lookup"); an exception is raised."""


@dataclass
class FakeSystem:
    """A downstream system in memory, whose faults a test decides. Passes the same oracle as a real one.

    ``before`` is asked before anything is applied, ``after`` once it is: an exception from the first is a
    call that failed, from the second an answer that was lost. ``latency`` is how long a call takes.
    """

    name: str = "fake"
    latency: float = 0.0
    before: Misbehaviour | None = None
    after: Misbehaviour | None = None
    applied: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    undone: list[str] = field(default_factory=list[str])
    calls: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def tool(self, name: str, **declared: Any) -> EffectTool[Note]:  # noqa: ANN401  # fields of EffectTool
        """Return a reversible, keyed tool over this system that commits at once.

        ``declared`` takes the place of its fields.
        """
        fields: dict[str, Any] = {
            "name": name,
            "description": f"Note something down in {self.name}.",
            "arguments": Note,
            "system": self.name,
            "says": "note {identity}",
            "undo_says": "strike {identity}",
            "commit": self.commit,
            "lookup": self.look_up,
            "reversible": True,
            "commits": "immediate",
            "compensate": self.undo,
            "repeat": Keyed(timedelta(hours=1)),
            "undo_repeat": Keyed(timedelta(hours=1)),
            "identity": attrgetter("identity"),
            "limits": Limits(
                landing_window=timedelta(milliseconds=500),
                send_by=timedelta(seconds=2),
                resolve=timedelta(seconds=10),
                undo_total=timedelta(seconds=20),
                undo_sends=3,
            ),
        }
        fields.update(declared)
        if not fields["reversible"]:
            for undo in {"compensate", "undo_says", "commits"} - declared.keys():
                fields.pop(undo, None)
            fields.setdefault("irreversible_because", "a note of this kind stays")
        return EffectTool(**fields)

    async def commit(self, request: JsonObject, call: Call) -> Committed:
        """Apply under the call's key; a key that was applied before applies nothing."""
        self.calls.append(("commit", call.key, str(request["identity"])))
        self._misbehave(self.before, "commit", call)
        await asyncio.sleep(self.latency)
        if not any(key == call.key for key, _ in self.applied):
            self.applied.append((call.key, str(request["identity"])))
        self._misbehave(self.after, "commit", call)
        return Committed(receipt={"key": call.key}, result={"noted": request["identity"]})

    async def commit_once(self, request: JsonObject, call: Call) -> Committed:
        """As ``commit``, by a system that takes no notice of keys; declare it with ``Once()``."""
        self.calls.append(("commit", call.key, str(request["identity"])))
        self._misbehave(self.before, "commit", call)
        await asyncio.sleep(self.latency)
        self.applied.append((call.key, str(request["identity"])))
        self._misbehave(self.after, "commit", call)
        return Committed(receipt={"key": call.key}, result={"noted": request["identity"]})

    async def look_up(self, request: JsonObject, call: Call) -> SearchResult:
        """Say whether this key was applied."""
        self.calls.append(("lookup", call.key, str(request["identity"])))
        self._misbehave(self.before, "lookup", call)
        if any(key == call.key for key, _ in self.applied):
            return Found(receipt={"key": call.key})
        return Missing()

    async def undo(self, request: JsonObject, receipt: JsonObject, call: Call) -> Undone:
        """Undo what the receipt names; twice is once."""
        self.calls.append(("undo", call.key, str(request["identity"])))
        self._misbehave(self.before, "undo", call)
        await asyncio.sleep(self.latency)
        key = str(receipt["key"])
        if not any(applied == key for applied, _ in self.applied):
            raise NotApplied("there is nothing of that key")
        if key not in self.undone:
            self.undone.append(key)
        self._misbehave(self.after, "undo", call)
        return Undone({"struck": key})

    def truth(self) -> Truth:
        """Return what stands."""
        identities = {identity for _, identity in self.applied}
        return Truth(effects=tuple(self._true(identity) for identity in sorted(identities)))

    def _true(self, identity: str) -> TrueEffect:
        applied = [key for key, name in self.applied if name == identity]
        undone = sum(key in self.undone for key in applied)
        return TrueEffect(
            system=self.name,
            identity=identity,
            standing=len(applied) - undone,
            applied=len(applied),
            undone=undone,
        )

    @staticmethod
    def _misbehave(how: Misbehaviour | None, phase: str, call: Call) -> None:
        error = None if how is None else how(phase, call)
        if error is not None:
            raise error
