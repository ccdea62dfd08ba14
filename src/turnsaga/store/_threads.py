"""The threads of the ledger: each runs what it is handed, one thing at a time, to its end."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

__all__ = ["Threads"]

T = TypeVar("T")
_Job: TypeAlias = Callable[[], None]


class Threads:
    """At most so many threads, started as they are needed.

    A pool of the standard library hands over by two futures that are chained, with callbacks and locks of
    their own; here it is one queue on the way there and one call on the way back.
    """

    def __init__(self, most: int, *, name: str) -> None:
        """Start none yet."""
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
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
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        context = copy_context()

        def done(result: T) -> None:
            if not answer.done():
                answer.set_result(result)

        def failed(error: BaseException) -> None:
            if not answer.done():
                answer.set_exception(error)

        def job() -> None:
            # The loop may have ended meanwhile; then there is nobody to tell.
            with suppress(RuntimeError):
                try:
                    result = context.run(work)
                except BaseException as error:  # noqa: BLE001  # it is raised where it is awaited
                    loop.call_soon_threadsafe(failed, error)
                else:
                    loop.call_soon_threadsafe(done, result)

        self._jobs.put(job)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads)}"
            # A daemon: a process that ends without closing the ledger mustn't wait for this thread.
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return answer

    async def close(self) -> None:
        """Wait for what is under way or waits to be; nothing is taken any more."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            self._idle.release()
