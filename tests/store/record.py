"""Record the ledger that the newest revision keeps: ``python -m tests.store.record``.

Run it once, when a revision is added, and commit what it writes: a recording stands for databases that
were left at that revision somewhere, so it is never written anew by later code.
"""

import asyncio
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from tests.store.ledgers import (
    ADA,
    APPLIED,
    BOB,
    EVE,
    LOST,
    REFUSED,
    Clock,
    Ledger,
    new_effect,
    new_turn,
    undo_claim,
)
from tests.store.recordings import RECORDED, Recording, engine_of, read_rows, what_is_seen
from turnsaga.keys import digest
from turnsaga.ledger import Event, State, TurnState
from turnsaga.models import CallRef, Decision, EffectRef, Principal, Ruling, RulingWord, StepRef, TurnRef
from turnsaga.settle import OnUnknown
from turnsaga.store import EngineName, NewCall, NewReply, SqlStore, UndoOutcome, Verdict
from turnsaga.store._unit import TurnUnit
from turnsaga.store.migrations import HEAD
from turnsaga.tools import CommitPolicy, Policy, ToolCard

FINAL = {"reversible": False, "no_undo_reason": "a note that was sent can't be taken back"}
ONCE = {"keyed": False, "can_look_up": False, "max_sends": 1}


class Ticking(Clock):
    """A clock of which no two readings are the same: lists are ordered by instants."""

    def __call__(self) -> datetime:
        self.pass_(0.001)
        return self.now


class Stories:
    """Turns of all kinds, told to the store as workers and web tiers tell them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.store = ledger.store

    async def tell(self) -> None:
        """Tell them all."""
        await self.store.set_engine(EngineName("cluster-1", "default"))
        cards = (
            ToolCard(name="note", description="Leave a note.", system="fake", reversible=True),
            ToolCard(name="find", description="Find a note."),
        )
        await self.store.write_tool_cards({card.name: card for card in cards})
        for story in (
            self.completed,
            self.repeated,
            self.aborted,
            self.failed,
            self.halted,
            self.unknown_and_undone,
            self.handed_over,
            self.landed_late,
            self.running,
            self.aborting,
            self.failing,
            self.held,
            self.queued,
            self.resolved,
            self.of_others,
        ):
            await story()
            self.ledger.clock.pass_(60)

    async def completed(self) -> None:
        """Two replies: text that was begun again, an effect that was refused, a read, a call of no tool."""
        ref = await self._begun("errands", calls=2, reads=1, refused=1)
        await self.store.restart_step(self._step(ref, 1), 2)
        await self.ledger.commit(ref, 0, identity="shelf/1", resources=("shelf",))
        refused = await self.ledger.claim(ref, 1)
        assert refused.row is not None
        await self.store.record_commit(refused.row.ref, refused.row.token, REFUSED)
        await self.store.record_result(self._call(ref, 2), {"found": ["a", "\u00fc", "\x00"]}, is_error=False)
        await self._reply(
            ref, 2, NewReply(text="Done.", finish="stop", input_tokens=9, output_tokens=2, calls=())
        )
        assert (await self.store.complete_turn(ref)).settled

    async def repeated(self) -> None:
        """The same call twice is one effect; the conversation's second turn."""
        ref = await self._begun("errands", calls=2)
        await self.ledger.commit(ref, 0, arguments={"same": True})
        await self.ledger.claim(ref, 1, arguments={"same": True})
        assert (await self.store.complete_turn(ref)).settled

    async def aborted(self) -> None:
        """One undone, one that stands and was seen, one overtaken, one released before it was sent."""
        ref = await self._begun("stopped", calls=4)
        undone = await self.ledger.commit(ref, 0)
        stands = await self.ledger.commit(ref, 1, **FINAL)
        overtaken = await self.ledger.commit(ref, 2)
        blocker = await self._begun("blocker", calls=1)
        await self.ledger.claim(blocker, identity="INV-7")
        await self.ledger.claim(ref, 3, identity="INV-7")
        await self.ledger.fence(ref)
        await self.store.next_steps(ref)
        await self._undo(overtaken, UndoOutcome(overtaken=True, error="changed since by bob"))
        await self._undo(undone, UndoOutcome(undone=True, evidence={"gone": True}))
        await self.store.acknowledge(ADA, stands.effect)
        assert (await self.store.next_steps(ref)).settled

    async def failed(self) -> None:
        """An undo that couldn't be completed, in a turn whose model was down."""
        ref = await self._begun("failed", calls=1)
        effect = await self.ledger.commit(ref)
        await self.ledger.fence(ref, "failure")
        await self._undo(effect, UndoOutcome(again=True, error="busy"))
        await self._undo(effect, UndoOutcome(error="the shelf is locked"))
        assert (await self.store.next_steps(ref)).settled

    async def halted(self) -> None:
        """An undo that couldn't be completed, and those before it wait for a person."""
        ref = await self._begun("halted", calls=2)
        await self.ledger.commit(ref, 0)
        last = await self.ledger.commit(ref, 1, halts=True)
        await self.ledger.fence(ref)
        await self._undo(last, UndoOutcome(error="the shelf is locked"))
        assert (await self.store.next_steps(ref)).settled

    async def unknown_and_undone(self) -> None:
        """Undone although nobody knows whether it was done; another such undo is under way."""
        ref = await self._begun("undone unasked", calls=2)
        for index in (0, 1):
            claim = await self.ledger.claim(ref, index, on_unknown=OnUnknown.COMPENSATE)
            assert claim.row is not None
            await self.store.record_commit(claim.row.ref, claim.row.token, LOST)
        await self._undo(await self._effect(ref, 0), UndoOutcome(undone=True, evidence={"gone": True}))
        assert (await self.store.claim_undo(await self._effect(ref, 1))).sends

    async def handed_over(self) -> None:
        """In doubt past the turn's end: one that can be asked about, one that a person must look at."""
        ref = await self._begun("in doubt", calls=2)
        for index, declared in enumerate(({"max_sends": 1}, ONCE)):
            claim = await self.ledger.claim(ref, index, **declared)
            assert claim.row is not None
            await self.store.record_commit(claim.row.ref, claim.row.token, LOST)
            await self.store.hand_over(claim.row.ref, "not known in time")
        await self.ledger.fence(ref)
        assert (await self.store.next_steps(ref)).settled

    async def landed_late(self) -> None:
        """Committed after its turn had settled: the sweeper is to undo it."""
        ref = await self._begun("late", calls=1)
        claim = await self.ledger.claim(ref, **ONCE)
        assert claim.row is not None
        await self.ledger.fence(ref)
        assert (await self.store.next_steps(ref)).settled
        await self.store.record_commit(claim.row.ref, claim.row.token, APPLIED)

    async def running(self) -> None:
        """A turn that runs, with an effect in each state that one of those can be in."""
        ref = await self._begun("open", calls=6)
        await self.ledger.commit(ref, 0)
        await self.ledger.claim(ref, 1)
        lost = await self.ledger.claim(ref, 2)
        assert lost.row is not None
        await self.store.record_commit(lost.row.ref, lost.row.token, LOST)
        job = await self.ledger.claim(ref, 3)
        assert job.row is not None
        await self._accept(job.row.ref)
        # INV-7 is still being committed by the blocker's turn.
        await self.ledger.claim(ref, 4, identity="INV-7", resources=("shelf",))

    async def aborting(self) -> None:
        """Stopped, with an undo under way and one to come."""
        ref = await self._begun("stopping", calls=3)
        await self.ledger.commit(ref, 0)
        await self.ledger.commit(ref, 1, **FINAL)
        last = await self.ledger.commit(ref, 2)
        await self.ledger.fence(ref)
        await self.store.next_steps(ref)
        _, may = undo_claim(await self.store.claim_undo(last))
        assert may

    async def failing(self) -> None:
        """Failed, with a look-up under way."""
        ref = await self._begun("failing", calls=2)
        await self.ledger.commit(ref, 0)
        claim = await self.ledger.claim(ref, 1)
        assert claim.row is not None
        await self.ledger.fence(ref, "failure")
        await self.store.begin_lookup(claim.row.ref)

    async def held(self) -> None:
        """An effect held for each reason, and one for each answer to it."""
        ref = await self._begun("held", calls=7)
        confirmed = Policy(CommitPolicy.CONFIRMED)
        await self._prepare(ref, 0, policy=confirmed)
        await self._prepare(ref, 1, policy=Policy(CommitPolicy.TURN_END))
        await self._prepare(ref, 2, policy=Policy(CommitPolicy.IMMEDIATE, timedelta(minutes=5)))
        await self._prepare(ref, 3, policy=confirmed, confirm=timedelta(milliseconds=1))
        await self.store.due(await self._effect(ref, 3), turn_ended=False)
        for index, policy, says in (
            (4, confirmed, True),
            (5, Policy(CommitPolicy.CONFIRMED, timedelta(minutes=5)), True),
            (6, confirmed, False),
        ):
            await self._prepare(ref, index, policy=policy)
            row = await self.store.load_effect(await self._effect(ref, index))
            decision = Decision(
                tenant=ref.tenant,
                effect=row.effect,
                confirmed=says,
                version=row.version,
                digest=row.shown_digest,
                by="acme/ada",
                via="api",
            )
            assert (await self.store.decide(decision, owner=ADA)).answer == "accepted"

    async def queued(self) -> None:
        """A turn that waits behind another one, and one that was stopped while it did."""
        await self._begun("busy", calls=1)
        waiting = [
            await self.store.start_turn(
                replace(new_turn(ADA, "busy", f"{name} {self.ledger.clock.now.isoformat()}"), on_busy="queue")
            )
            for name in ("waits", "gave up")
        ]
        assert {one.state for one in waiting} == {TurnState.QUEUED}
        await self.ledger.fence(waiting[1].ref)

    async def resolved(self) -> None:
        """A person's word of each kind; one that was found applied after its turn had been stopped."""
        ref = await self._begun("resolved", calls=4)
        undone, stands = [await self.ledger.commit(ref, index) for index in range(2)]
        for index in (2, 3):
            claim = await self.ledger.claim(ref, index, **ONCE, **FINAL)
            assert claim.row is not None
            await self.store.record_commit(claim.row.ref, claim.row.token, LOST)
        await self.ledger.fence(ref)
        assert [step.action for step in (await self.store.next_steps(ref)).steps] == ["undo"]
        for effect in (stands, undone):
            await self._undo(effect, UndoOutcome(error="the shelf is locked"))
        assert (await self.store.next_steps(ref)).settled
        self.ledger.clock.pass_(60)
        words: tuple[tuple[EffectRef, RulingWord], ...] = (
            (undone, "undone"),
            (stands, "stands"),
            (await self._effect(ref, 2), "applied"),
            (await self._effect(ref, 3), "not_applied"),
        )
        for effect, word in words:
            ruling = Ruling(
                tenant=ref.tenant, effect=effect.effect, word=word, note="looked", by="acme/ops", via="api"
            )
            assert (await self.store.resolve(ruling)).answer == "accepted"
        assert (await self.store.next_steps(ref)).settled

    async def _prepare(self, ref: TurnRef, index: int, **declared: Any) -> None:
        new = new_effect(ref, index, **declared)
        claim = await self.store.claim_commit(self._call(ref, index), new, gate=False)
        assert claim.verdict is Verdict.HELD

    async def _effect(self, ref: TurnRef, index: int) -> EffectRef:
        claim = await self.store.claim_commit(self._call(ref, index), None, gate=False)
        assert claim.row is not None
        return claim.row.ref

    async def of_others(self) -> None:
        """The same conversation's name under another user and another tenant."""
        for who in (BOB, EVE):
            ref = await self._begun("errands", calls=1, who=who)
            await self.ledger.commit(ref)
            assert (await self.store.complete_turn(ref)).settled

    async def _begun(
        self, conversation: str, *, calls: int, reads: int = 0, refused: int = 0, who: Principal = ADA
    ) -> TurnRef:
        key = f"{conversation} {self.ledger.clock.now.isoformat()}"
        started = await self.store.start_turn(
            new_turn(who, conversation, key, message=f"tidy up: {conversation}")
        )
        ref = started.ref
        await self.store.step_context(self._step(ref, 1))
        await self.store.append_text(self._step(ref, 1), "I'll see to it.")
        kinds = (
            [("effect", "note")] * calls + [("read", "find")] * reads + [("refused", "nonsense")] * refused
        )
        asked = tuple(
            NewCall(
                call_id=f"call_{index}",
                tool=tool,
                arguments="{}",
                kind=kind,
                digest=None if kind == "refused" else digest({"n": index}),
                result="not run: there is no tool 'nonsense'" if kind == "refused" else None,
            )
            for index, (kind, tool) in enumerate(kinds)
        )
        await self._reply(
            ref,
            1,
            NewReply(
                text="I'll see to it.", finish="tool_call", input_tokens=7, output_tokens=5, calls=asked
            ),
        )
        return ref

    async def _reply(self, ref: TurnRef, step: int, reply: NewReply) -> None:
        assert await self.store.record_reply(self._step(ref, step), reply)

    async def _undo(self, effect: EffectRef, outcome: UndoOutcome) -> None:
        row, may = undo_claim(await self.store.claim_undo(effect))
        assert may
        await self.store.record_undo(effect, row.token, outcome)

    async def _accept(self, effect: EffectRef) -> None:
        """Take an effect for a job that was accepted, as later versions' tools can declare."""

        def accept(connection: Connection) -> None:
            unit = TurnUnit.hold(
                connection, TurnRef(tenant=effect.tenant, turn=effect.turn), self.ledger.clock.now
            )
            row = unit.effect(effect.effect)
            assert unit.move(row, Event.JOB_ACCEPTED, token=row.token + 1).state is State.ACCEPTED

        await self.store._database.write(accept)

    @staticmethod
    def _step(ref: TurnRef, step: int) -> StepRef:
        return StepRef(tenant=ref.tenant, turn=ref.turn, step=step)

    @staticmethod
    def _call(ref: TurnRef, index: int) -> CallRef:
        return CallRef(tenant=ref.tenant, turn=ref.turn, step=1, index=index)


async def record(folder: Path) -> Recording:
    """Return the recording of the newest revision."""
    assert HEAD is not None
    url, clock = f"sqlite:///{folder / 'ledger.db'}", Ticking()
    store = SqlStore(url, clock=clock)
    await store.open()
    await Stories(Ledger(store, clock)).tell()
    engine = engine_of(url)
    with engine.connect() as connection:
        rows = read_rows(connection)
    engine.dispose()
    seen = await what_is_seen(store, rows)
    await store.close()
    return Recording(HEAD, clock.now, rows, seen)


def main() -> int:
    """Write the recording of the newest revision, unless there is one."""
    if (RECORDED / f"{HEAD}.json").exists():
        sys.stderr.write(f"{HEAD}: there is a recording, of the code that made this revision; it is kept\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        written = asyncio.run(record(Path(folder))).write()
    sys.stdout.write(f"{written}: {written.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
