"""The way of a call through a system: logged, aimed at by knobs, applied, answered."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from sandbox import idempotency, truth
from sandbox.calls import Answer, KeyRules, LoggedCall, Moment, Op, Operation
from sandbox.errors import ClosingDown, Refused
from sandbox.knobs import Fault, Knobs, Panel
from sandbox.store import Store


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do to the connection: send the answer, or cut it without one."""

    call: LoggedCall
    answer: Answer
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Running:
    """The request that holds an idempotency key until its answer is due."""

    fingerprint: str
    over: asyncio.Event


class Exchange:
    """Runs calls, each in a task of its own that goes on when its client has gone."""

    def __init__(self, store: Store, panel: Panel) -> None:
        self._store = store
        self._panel = panel
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[str, str], _Running] = {}
        self._closed = False

    async def run(self, system: str, operation: Operation) -> Verdict:
        """Return what to answer, when it is time to.

        Raises:
            ClosingDown: the sandbox ends before that.
        """
        if self._closed:
            raise ClosingDown
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        task = self._spawn(self._follow(system, operation, verdict))
        await asyncio.wait((verdict, task), return_when=asyncio.FIRST_COMPLETED)
        if verdict.done():
            return verdict.result()
        if task.cancelled():
            raise ClosingDown
        task.result()
        raise ClosingDown

    async def answered(self, verdict: Verdict) -> None:
        """Log that the answer went out; to be awaited without a pause after it was sent."""
        await self._store.run(partial(truth.log_answer, call=verdict.call, status=verdict.answer.status))

    async def close(self) -> None:
        """Let nothing more land, and cut what waits."""
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self, system: str, operation: Operation, verdict: "asyncio.Future[Verdict]") -> None:
        arrived = asyncio.get_running_loop().time()
        call = await self._store.run(partial(truth.log_call, system=system, operation=operation))
        knobs = self._panel.aimed_at(call)
        # Answered at once and without a fault: the vendor refuses it without working.
        if refusal := self._refused_while_running(call, operation, knobs):
            verdict.set_result(Verdict(call, refusal))
            return
        turn = _Turn(call, operation, knobs, self._panel.take_fault(call), arrived)
        async with self._key_held(call, operation.key_rules):
            if turn.failure is not None and turn.lands_late:
                # The failure is answered first, and the effect lands although it was.
                failed = Verdict(call, turn.failure)
                await asyncio.gather(self._land(turn), self._answer(turn, failed, verdict))
            else:
                answer = await self._land(turn)
                cut = turn.fault.cut
                await self._answer(turn, Verdict(call, turn.failure or answer, cut=cut), verdict)

    async def _land(self, turn: "_Turn") -> Answer:
        if turn.lands_late:
            await _until(turn.arrived + turn.knobs.apply_after_ms / 1000)
        return await self._store.run(turn.settle)

    async def _answer(self, turn: "_Turn", due: Verdict, verdict: "asyncio.Future[Verdict]") -> None:
        await _until(turn.arrived + turn.knobs.latency_ms / 1000)
        verdict.set_result(due)

    def _refused_while_running(self, call: LoggedCall, operation: Operation, knobs: Knobs) -> Answer | None:
        rules = operation.key_rules
        if rules is None or call.key is None:
            return None
        running = self._running.get((call.system, call.key))
        if running is None:
            return None
        if running.fingerprint != rules.fingerprint:
            return rules.mismatch
        return rules.in_use if knobs.conflict_while_running else None

    @asynccontextmanager
    async def _key_held(self, call: LoggedCall, rules: KeyRules | None) -> AsyncIterator[None]:
        if rules is None or call.key is None:
            yield
            return
        slot = (call.system, call.key)
        while (earlier := self._running.get(slot)) is not None:
            await earlier.over.wait()
        self._running[slot] = _Running(rules.fingerprint, asyncio.Event())
        try:
            yield
        finally:
            self._running.pop(slot).over.set()


@dataclass(frozen=True, slots=True)
class _Turn:
    """A call whose turn it is to be applied, and the knobs that it found."""

    call: LoggedCall
    operation: Operation
    knobs: Knobs
    fault: Fault
    arrived: float

    @property
    def failure(self) -> Answer | None:
        fail = self.fault.fail
        return None if fail is None else self.operation.failure(fail.status)

    @property
    def lands_late(self) -> bool:
        applies = self.fault.fail is None or self.fault.fail.applied
        return applies and self.call.op is not Op.LOOKUP and self.knobs.apply_after_ms > 0

    def settle(self, db: sqlite3.Connection) -> Answer:
        """Apply the call, or find what its key answered; one transaction."""
        now = time.time()
        rules = self.operation.key_rules
        if rules is None or self.call.key is None:
            return self._perform(db, now)
        stored = idempotency.find(db, self.call, not_before=now - self.knobs.key_ttl_s)
        if stored is not None and stored.fingerprint != rules.fingerprint:
            return rules.mismatch
        if stored is not None:
            return stored.answer.with_headers(("idempotent-replayed", "true"))
        answer = self._perform(db, now)
        if self._is_remembered(answer):
            idempotency.remember(db, self.call, rules, answer, now=now)
        return answer

    def _perform(self, db: sqlite3.Connection, now: float) -> Answer:
        """Return what was done, or the failure where that is what the vendor remembers."""
        failure = self.failure
        if failure is not None and self.fault.fail is not None and not self.fault.fail.applied:
            return failure
        moment = Moment(db, self.call, now=now, seen_until=now - self.knobs.read_lag_ms / 1000)
        try:
            answer = self.operation.perform(moment)
        except Refused as refusal:
            answer = refusal.answer
        # A vendor that doesn't remember its error stores what it did, and a repeat gets that.
        return failure if failure is not None and self._is_remembered(failure) else answer

    def _is_remembered(self, answer: Answer) -> bool:
        return answer.status < 400 or (self.knobs.remember_errors and answer.status >= 500)


async def _until(due: float) -> None:
    """Sleep until ``due`` on the loop's clock."""
    await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
