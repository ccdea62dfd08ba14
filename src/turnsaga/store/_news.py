"""Who waits for news of which turn."""

import asyncio
import contextlib

__all__ = ["News"]


class News:
    """Wakes those that wait for a turn when something is heard of it."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def tell(self, loop: asyncio.AbstractEventLoop, turn: str) -> None:
        """Wake the turn's followers, from any thread; "" wakes all, since anything may have happened."""
        # The loop may have ended while the listening thread still hears.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._wake, turn)

    async def wait(self, turn: str, within_s: float) -> None:
        """Return when something is heard of the turn, or when the time is over."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(turn, set())
        waiting.add(event)
        try:
            async with asyncio.timeout(within_s):
                await event.wait()
        except TimeoutError:
            return
        finally:
            waiting.discard(event)
            if not waiting:
                self._waiting.pop(turn, None)

    def _wake(self, turn: str) -> None:
        names = list(self._waiting) if turn == "" else [turn]
        for name in names:
            for event in self._waiting.get(name, ()):
                event.set()
