"""Every policy, an abort at every moment, for what can be undone and what can't: how each of it ends.

``CELLS`` is the expectation. A cell that can't exist says why, and what comes nearest to it is run instead
and has to show it.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pytest

from tests.oracle import truth_of
from tests.stack import SandboxProcess, Turns, call, eventually, reply, say
from turnsaga.errors import DecisionRefused, NotFound
from turnsaga.ledger import TurnState
from turnsaga.models import EffectView, Principal, StepRef, TurnEvent, TurnView
from turnsaga.store import Started
from turnsaga.testing import Truth, disorder
from turnsaga.transcript import PastTurn

Moment = Literal[
    "before prepare", "while held", "at confirmation", "during commit", "after commit", "after end"
]
Hold = Literal["confirmation", "turn_end", "delay"]
Tool = Literal["charge_card", "send_invoice_email"]

SYSTEMS: Final = {"charge_card": "pay", "send_invoice_email": "mail"}
IN_FLIGHT_MS: Final = 2500
"""How long the vendors take where the abort is to meet a commit."""


@dataclass(frozen=True, kw_only=True)
class End:
    """A way in which a turn of one call may end.

    ``events`` are those from the last hold on, of the effect and of the fence. ``model`` is what the next
    turn's model is given as the call's result, ``notice`` what it is told about it unasked; ``user`` is
    what the effect's summary says behind its title.
    """

    turn: TurnState
    state: str | None = None
    standing: int = 0
    applied: int = 0
    events: tuple[str, ...] = ()
    model: str = ""
    notice: str = ""
    user: str = ""
    error: str | None = None


_SENT = ("tool_committing", "tool_committed")
_BACK = ("tool_compensating", "tool_compensated")
_UNDONE = End(
    turn=TurnState.ABORTED,
    state="compensated",
    applied=1,
    model="done, then undone since the turn was stopped",
    user="undone",
)
_STANDS = End(
    turn=TurnState.ABORTED,
    state="standing",
    standing=1,
    applied=1,
    model="done; it stands although the turn was stopped",
    notice="was done in a turn that was stopped, and stands (a mail that was sent can't be called back)",
    user="done, and stands",
)

# No reply was whole, so the history has no call.
NOTHING = End(turn=TurnState.ABORTED, events=("turn_aborting",))
REFUSED = End(
    turn=TurnState.ABORTED,
    events=("turn_aborting",),
    model="not run: this tool isn't available in this turn",
)
REFUSED_KEPT = replace(REFUSED, turn=TurnState.COMPLETED, events=())
RELEASED = End(
    turn=TurnState.ABORTED,
    state="released",
    events=("turn_aborting", "tool_released"),
    model="not run: it was not sent (aborted: not sent, the turn was stopped first)",
    user="not done",
    error="aborted: not sent, the turn was stopped first",
)
# The abort met it on the wire: it is waited for.
UNDONE_FLYING = replace(_UNDONE, events=(_SENT[0], "turn_aborting", _SENT[1], *_BACK))
UNDONE_LATER = replace(_UNDONE, events=(*_SENT, "turn_aborting", *_BACK))
STANDS_FLYING = replace(_STANDS, events=(_SENT[0], "turn_aborting", _SENT[1], "tool_standing"))
STANDS_LATER = replace(_STANDS, events=(*_SENT, "turn_aborting", "tool_standing"))
CHARGED = End(
    turn=TurnState.COMPLETED,
    state="committed",
    standing=1,
    applied=1,
    events=_SENT,
    model='"status":"succeeded"',
    user="done",
)
MAILED = replace(CHARGED, model='"sent_to":"ada@example.com"')

HELD: Final[dict[str, tuple[Hold, ...]]] = {
    "confirmed": ("confirmation",),
    "turn_end": ("turn_end",),
    "immediate": (),
    "off": (),
    "confirmed+": ("confirmation", "delay"),
    "turn_end+": ("turn_end", "delay"),
    "immediate+": ("delay",),
}
"""What holds an effect under each policy, one after the other. ``+`` is a delay."""

TOLD_MEANWHILE: Final = {
    "turn_end": "prepared and not done yet: it takes effect when this turn ends, unless the user stops it: ",
    "turn_end+": "prepared and not done yet: it takes effect when this turn ends, unless the user stops it: ",
    "off": "not run: this tool isn't available in this turn",
}
"""What the turn's own model is told while it goes on; under the other policies it has the result by then."""


@dataclass(frozen=True)
class Cell:
    """How a charge and a mail may end. ``absent`` says why there is no such cell."""

    charge: frozenset[End]
    mail: frozenset[End]
    absent: str | None = None

    def ends(self, tool: Tool) -> frozenset[End]:
        return self.charge if tool == "charge_card" else self.mail


def one(charge: End, mail: End) -> Cell:
    return Cell(frozenset({charge}), frozenset({mail}))


def no(why: str, charge: End, mail: End) -> Cell:
    return Cell(frozenset({charge}), frozenset({mail}), why)


_AT_ONCE = "nothing holds it: it is committed in the moment in which it is prepared"
_UNASKED = "nobody is asked, so there is no answer that could count"
_OFF = "a call of this tool is refused before there is an effect"
_ENDED = "its commit comes once the stream has ended"

CELLS: Final[dict[tuple[str, Moment], Cell]] = {
    ("confirmed", "before prepare"): one(NOTHING, NOTHING),
    ("confirmed", "while held"): one(RELEASED, RELEASED),
    ("confirmed", "at confirmation"): Cell(
        frozenset({RELEASED, UNDONE_FLYING, UNDONE_LATER}), frozenset({RELEASED, STANDS_FLYING, STANDS_LATER})
    ),
    ("confirmed", "during commit"): one(UNDONE_FLYING, STANDS_FLYING),
    ("confirmed", "after commit"): one(UNDONE_LATER, STANDS_LATER),
    ("confirmed", "after end"): one(CHARGED, MAILED),
    ("turn_end", "before prepare"): one(NOTHING, NOTHING),
    ("turn_end", "while held"): one(RELEASED, RELEASED),
    ("turn_end", "at confirmation"): no(_UNASKED, RELEASED, RELEASED),
    ("turn_end", "during commit"): one(UNDONE_FLYING, STANDS_FLYING),
    ("turn_end", "after commit"): no(_ENDED, CHARGED, MAILED),
    ("turn_end", "after end"): one(CHARGED, MAILED),
    # For the mail this is "immediate!": asked for by name.
    ("immediate", "before prepare"): one(NOTHING, NOTHING),
    ("immediate", "while held"): no(_AT_ONCE, UNDONE_LATER, STANDS_LATER),
    ("immediate", "at confirmation"): no(_UNASKED, UNDONE_LATER, STANDS_LATER),
    ("immediate", "during commit"): one(UNDONE_FLYING, STANDS_FLYING),
    ("immediate", "after commit"): one(UNDONE_LATER, STANDS_LATER),
    ("immediate", "after end"): one(CHARGED, MAILED),
    ("off", "before prepare"): one(NOTHING, NOTHING),
    ("off", "while held"): no(_OFF, REFUSED, REFUSED),
    ("off", "at confirmation"): no(_OFF, REFUSED, REFUSED),
    ("off", "during commit"): no(_OFF, REFUSED, REFUSED),
    ("off", "after commit"): no(_OFF, REFUSED, REFUSED),
    ("off", "after end"): one(REFUSED_KEPT, REFUSED_KEPT),
    ("confirmed+", "before prepare"): one(NOTHING, NOTHING),
    ("confirmed+", "while held"): one(RELEASED, RELEASED),
    # Whichever comes first: a confirmation only begins the delay.
    ("confirmed+", "at confirmation"): one(RELEASED, RELEASED),
    ("confirmed+", "during commit"): one(UNDONE_FLYING, STANDS_FLYING),
    ("confirmed+", "after commit"): one(UNDONE_LATER, STANDS_LATER),
    ("confirmed+", "after end"): one(CHARGED, MAILED),
    ("turn_end+", "before prepare"): one(NOTHING, NOTHING),
    ("turn_end+", "while held"): one(RELEASED, RELEASED),
    ("turn_end+", "at confirmation"): no(_UNASKED, RELEASED, RELEASED),
    ("turn_end+", "during commit"): one(UNDONE_FLYING, STANDS_FLYING),
    ("turn_end+", "after commit"): no(_ENDED, CHARGED, MAILED),
    ("turn_end+", "after end"): one(CHARGED, MAILED),
    ("immediate+", "before prepare"): one(NOTHING, NOTHING),
    ("immediate+", "while held"): one(RELEASED, RELEASED),
    ("immediate+", "at confirmation"): no(_UNASKED, RELEASED, RELEASED),
    ("immediate+", "during commit"): one(UNDONE_FLYING, STANDS_FLYING),
    ("immediate+", "after commit"): one(UNDONE_LATER, STANDS_LATER),
    ("immediate+", "after end"): one(CHARGED, MAILED),
}
MOMENTS: Final[tuple[Moment, ...]] = (
    "before prepare",
    "while held",
    "at confirmation",
    "during commit",
    "after commit",
    "after end",
)
TOOLS: Final[tuple[Tool, ...]] = ("charge_card", "send_invoice_email")
_numbers = itertools.count(1)


def test_table_has_every_cell() -> None:
    assert set(CELLS) == set(itertools.product(HELD, MOMENTS))


@dataclass
class Run:
    """One turn on its way through a cell; ``until`` is what holds it when the abort comes."""

    turns: Turns
    policy: str
    moment: Moment
    tool: Tool
    until: Hold | None
    abort_first: bool
    invoice: str
    absent: bool
    started: Started | None = None
    refused: str | None = None
    confirmed: str | None = None
    view: TurnView | None = None
    events: tuple[TurnEvent, ...] = ()
    past: PastTurn | None = None
    told_next: str = ""

    def __str__(self) -> str:
        held = f" for {self.until}" if self.until else ""
        return f"{self.policy}, {self.moment}{held}, {self.tool} ({self.invoice})"

    @property
    def turn(self) -> Started:
        assert self.started is not None
        return self.started

    @property
    def streams_on(self) -> bool:
        """True if the turn's stream is to go on until the abort."""
        ends = self.moment in {"during commit", "after commit"} and "turn_end" in HELD[self.policy]
        return not (
            ends or self.moment == "after end" or (self.until == "delay" and "turn_end" in self.policy)
        )

    def words(self) -> dict[str, str]:
        word = self.policy.removesuffix("+")
        if word == "immediate" and self.tool == "send_invoice_email":
            word = "immediate!"
        # Long where the abort is to meet it, short where it is to pass.
        meets = self.moment == "at confirmation" or self.until == "delay"
        delay = ("+60s" if meets else "+300ms") if self.policy.endswith("+") else ""
        return {self.tool: word + delay}

    async def start(self) -> None:
        asked = (
            call("charge_card", customer="cus_1", amount="10.00", currency="EUR", invoice=self.invoice)
            if self.tool == "charge_card"
            else call("send_invoice_email", to="ada@example.com", invoice=self.invoice, amount="10.00")
        )
        thinking = ["thinking "] * 300
        script = (
            [say(*thinking, delay_ms=100, calls=[asked])]
            if self.moment == "before prepare"
            else [
                reply(asked),
                say("told {{results}} ", *(thinking if self.streams_on else ()), delay_ms=100),
            ]
        )
        self.started = await self.turns.start(
            *script, policies=self.words(), conversation=f"matrix {self.invoice}"
        )

    async def until_there(self) -> None:
        """Come to the moment of the abort, and answer what is asked on the way."""
        match self.moment:
            case _ if self.policy == "off" and self.moment not in {"before prepare", "after end"}:
                await self.reaches("told ")
            case "before prepare":
                await self.reaches("thinking")
            case "while held" | "at confirmation" if self.until is not None:
                await self.past_question()
                await self.held_for(self.until)
                if self.until == "turn_end":
                    await self.reaches("told ")
            case "during commit":
                await self.past_question()
                await self.turns.reaches(self.turn, "committing", self.tool, within=30)
            case "while held" | "at confirmation" | "after commit" if self.streams_on:
                await self.past_question()
                await self.turns.reaches(self.turn, "committed", self.tool, within=30)
                await self.reaches("told ")
            case _:
                await self.past_question()
                await self.turns.settled(self.turn)

    async def past_question(self) -> None:
        if "confirmation" in HELD[self.policy] and self.until != "confirmation":
            await self.confirm(await self.held_for("confirmation"))

    async def confirm(self, shown: EffectView) -> None:
        who, client = self.turns.who, self.turns.turns
        try:
            answered = await client.confirm(who, shown.effect, version=shown.version, digest=shown.digest)
        except DecisionRefused as error:
            self.refused = error.problem
        else:
            self.confirmed = answered.effect.state.value

    async def held_for(self, why: Hold) -> EffectView:
        async def there() -> EffectView | None:
            effects = (await self.turns.view(self.turn)).effects
            return next((effect for effect in effects if effect.held_for == why), None)

        found: EffectView = await eventually(there, within=30, what=f"held for {why}")
        return found

    async def reaches(self, words: str) -> None:
        await eventually(lambda: self.said(words), within=30, what=f"a model that says {words!r}")

    async def said(self, words: str) -> bool:
        store, who = self.turns.store, self.turns.who
        page = await store.event_page(who, self.turn.ref.turn, after=0)
        return words in "".join(str(event.data.get("text", "")) for event in page.events)

    async def stop(self) -> None:
        async def abort() -> bool:
            return (await self.turns.turns.abort(self.turns.who, self.turn.ref.turn, reason="stop")).first

        if self.moment == "at confirmation":
            view = await self.turns.view(self.turn)
            both: list[Callable[[], Awaitable[object]]] = [abort]
            if view.effects:
                shown = view.effects[0]
                both.append(lambda: self.confirm(shown))
            else:
                with pytest.raises(NotFound):
                    await self.turns.turns.confirm(self.turns.who, "eff_none", version=1, digest="none")
            await asyncio.gather(*(do() for do in (both if self.abort_first else reversed(both))))
            return
        first = await abort()
        ends = self.moment == "after end" or (self.absent and not self.streams_on)
        assert first is not ends, "the abort came at another moment than it was meant for"

    async def look_back(self) -> None:
        """Let the turn settle, and ask the conversation's next turn what its model is told of it."""
        self.view = await self.turns.settled(self.turn)
        self.events = tuple(await self.turns.events(self.turn))
        following = await self.turns.start(
            say("{{results}} | {{context}}"), conversation=self.turn.conversation
        )
        await self.turns.settled(following)
        self.told_next = text_of(await self.turns.events(following))
        step = StepRef(tenant=following.ref.tenant, turn=following.ref.turn, step=1)
        self.past = (await self.turns.store.step_context(step)).history[0]

    def judge(self, cell: Cell, truth: Truth) -> None:
        """Hold all that is known of the run against the table."""
        assert self.view is not None
        effects = self.view.effects
        state = effects[0].state.value if effects else None
        ends = [end for end in cell.ends(self.tool) if (end.turn, end.state) == (self.view.state, state)]
        assert ends, f"it ended {self.view.state}, {state}"
        assert len(effects) <= 1
        assert disorder(self.events) == ()
        self._judge_answer(state)
        held, events = self._told()
        assert held == HELD[self.policy][: len(held)]
        assert len(held) >= (0 if not effects else len(HELD[self.policy]) if state != "released" else 1)
        if self.until is not None and state == "released":
            assert held[-1] == self.until or self.confirmed is not None
        end = next((end for end in ends if end.events == events), None)
        assert end is not None, f"events {events}"
        self._judge_systems(end, truth)
        self._judge_user(end)
        self._judge_models(end)

    def _judge_answer(self, state: str | None) -> None:
        if self.moment != "at confirmation" or state is None:
            assert self.refused is None
            return
        if self.absent:
            assert self.refused in {"not_held", "turn_aborted"}
        elif self.refused is not None:
            assert (self.refused, state) == ("turn_aborted", "released")
        elif self.policy == "confirmed" and self.confirmed != "prepared":
            # Once it is answered, the gate has opened.
            assert state != "released"

    def _told(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what held the effect, and the events from then on."""
        kinds = [e for e in self.events if e.kind.startswith("tool_") or e.kind == "turn_aborting"]
        prepared = [event.kind for event in kinds[:1]] == ["tool_prepared"]
        rest = kinds[int(prepared) :]
        held = list(itertools.takewhile(lambda event: event.kind == "tool_held", rest))
        return (
            tuple(str(event.data["held_for"]) for event in held),
            tuple(event.kind for event in rest[len(held) :]),
        )

    def _judge_systems(self, end: End, truth: Truth) -> None:
        place = (SYSTEMS[self.tool], self.invoice)
        true = [found for found in truth.effects if (found.system, found.identity) == place]
        assert sum(found.standing for found in true) == end.standing
        assert sum(found.applied for found in true) == end.applied

    def _judge_user(self, end: End) -> None:
        assert self.view is not None
        assert self.view.reason == ("stop" if end.turn is TurnState.ABORTED else None)
        settlement = self.view.settlement
        assert settlement is not None
        listed = {name: ids for name, ids in settlement.model_dump(exclude={"at"}).items() if ids}
        if end.state is None:
            assert (self.view.effects, listed) == ((), {})
            return
        (effect,) = self.view.effects
        assert listed == {end.state: (effect.effect,)}
        assert effect.summary == f"{effect.title}: {end.user}"
        assert (effect.error, effect.held_for, effect.expires_at) == (end.error, None, None)
        assert effect.identity == self.invoice
        if self.tool == "send_invoice_email":
            assert effect.no_undo_reason == "a mail that was sent can't be called back"
        last = [event.data for event in self.events if event.kind.startswith("tool_")][-1]
        assert last == effect.model_dump(mode="json"), "the last event shows what the API shows"

    def _judge_models(self, end: End) -> None:
        assert self.past is not None
        results = [made.result for step in self.past.steps for made in step.calls]
        assert len(results) == (0 if self.moment == "before prepare" else 1)
        assert all(end.model in result for result in results)
        assert self.past.state is end.turn
        given, _, notices = self.told_next.partition(" | ")
        if self.past.steps and self.past.steps[-1].calls:
            assert results[0] in given, "what the scripted model was given is the history"
        assert (end.notice in notices) if end.notice else not notices.strip()
        meanwhile = text_of(self.events)
        if "told " in meanwhile:
            expected = (
                TOLD_MEANWHILE.get(self.policy) or (CHARGED if self.tool == "charge_card" else MAILED).model
            )
            assert expected in meanwhile
        if "turn_end" in HELD[self.policy]:
            kinds = [event.kind for event in self.events]
            assert "text_delta" not in kinds[kinds.index("tool_committing") :] if _SENT[0] in kinds else True


def text_of(events: Any) -> str:
    return "".join(str(event.data["text"]) for event in events if event.kind == "text_delta")


def runs_of(turns: Turns, moment: Moment) -> list[Run]:
    runs: list[Run] = []
    for policy, tool in itertools.product(HELD, TOOLS):
        cell, holds = CELLS[policy, moment], HELD[policy]
        untils: tuple[Hold | None, ...] = (None,)
        if moment == "while held":
            untils = holds or (None,)
        elif moment == "at confirmation":
            # Thrice, since two requests at once don't always come in the same order.
            untils = (holds[:1] or (None,)) * (3 if cell.absent is None else 1)
        for until in untils:
            number = next(_numbers)
            runs.append(
                Run(
                    # A user for each: what stands is told to its user, in whatever conversation.
                    replace(turns, who=Principal(tenant="acme", user=f"matrix-{number}"), started=[]),
                    policy,
                    moment,
                    tool,
                    until,
                    abort_first=bool(number % 2),
                    invoice=f"INV-M{number}",
                    absent=cell.absent is not None,
                )
            )
    return runs


@pytest.mark.parametrize("moment", MOMENTS)
async def test_abort_ends_as_the_table_says(turns: Turns, sandbox: SandboxProcess, moment: Moment) -> None:
    if moment == "during commit":
        for system in SYSTEMS.values():
            await sandbox.knobs(system, latency_ms=IN_FLIGHT_MS, only={"op": "apply"})
    runs, lane = runs_of(turns, moment), asyncio.Semaphore(8)

    async def go(run: Run) -> None:
        async with lane:
            await run.start()
            await run.until_there()
            await run.stop()
            await run.look_back()

    ended = await asyncio.gather(*map(go, runs), return_exceptions=True)
    truth = await truth_of(sandbox)

    wrong: list[str] = []
    for run, failure in zip(runs, ended, strict=True):
        try:
            assert failure is None, repr(failure)
            run.judge(CELLS[run.policy, run.moment], truth)
        except AssertionError as error:  # all cells are told, not only the first
            wrong.append(f"{run}: {error}\n  {[event.kind for event in run.events]}")
    assert not wrong, "\n".join(wrong)
