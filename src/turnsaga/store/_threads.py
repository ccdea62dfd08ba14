"""The threads of the ledger: each runs what it is handed, one thing at a time, to its end."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

__all__ = ["Job", "Threads"]

T = TypeVar("T")


class Job(Generic[T]):
    """Something to run in its caller's context, and who waits for what it gives."""

    __slots__ = ("_answer", "_loop", "context", "work")

    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self.work: Final = work
        self.context: Final = copy_context()
        self._loop = loop
        self._answer: asyncio.Future[T] = loop.create_future()

    @property
    def answer(self) -> "asyncio.Future[T]":
        """What the caller awaits."""
        return self._answer

    def run(self) -> None:
        """Run it, and tell its caller."""
        try:
            result = self.context.run(self.work)
        except BaseException as error:  # noqa: BLE001  # it is raised where it is awaited
            self.fail(error)
        else:
            self.tell(result)

    def tell(self, result: T) -> None:
        """Give the caller its result."""
        self._later(self._done, result)

    def fail(self, error: BaseException) -> None:
        """Raise this where the caller awaits."""
        self._later(self._failed, error)

    def _later(self, told: Callable[[Any], None], what: object) -> None:
        # The loop may have ended meanwhile; then there is nobody to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(told, what)

    def _done(self, result: T) -> None:
        if not self._answer.done():
            self._answer.set_result(result)

    def _failed(self, error: BaseException) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


class Threads:
    """At most so many threads, started as they are needed.

    A pool of the standard library hands over by two futures that are chained, with callbacks and locks of
    their own; here it is one queue on the way there and one call on the way back.
    """

    def __init__(self, most: int, *, name: str) -> None:
        """Start none yet."""
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._returned: deque[Job[Any]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._closed = False

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run ``work`` in the caller's context as soon as a thread is free.

        A caller that is cancelled hears nothing more of it; the work goes on to its end all the same.

        Raises:
            RuntimeError: they are closed.
        """
        if self._closed:
            raise RuntimeError("the ledger is closed")
        job = Job(work, asyncio.get_running_loop())
        self._jobs.put(job)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads)}"
            # A daemon: a process that ends without closing the ledger mustn't wait for this thread.
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return job.answer

    def take(self) -> Job[Any] | None:
        """Take what is next, for a job that does it along with its own; None if nothing waits.

        Who takes it tells its caller, or returns it.
        """
        if self._returned:
            return self._returned.popleft()
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return None
        if job is None:
            self._jobs.put(None)
        return job

    def give_back(self, jobs: Sequence[Job[Any]]) -> None:
        """Have jobs that were taken run before all others, in this order."""
        self._returned.extendleft(reversed(jobs))

    async def close(self) -> None:
        """Wait for what is under way or waits to be; nothing is taken any more."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            self._idle.release()

    def _next(self) -> Job[Any] | None:
        # Nothing waits for what was returned: who returned it comes here next.
        return self._returned.popleft() if self._returned else self._jobs.get()
