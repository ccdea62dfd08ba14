"""What a log may keep of an error: its types and the places in the code, not its text.

An error's text is written by whoever raised it, and often holds what was being worked on: a vendor's
answer, a statement's parameters, a tool's arguments. Temporal's SDK logs each failed activity with its
whole chain of errors, so the text is taken out where lines are rendered, whoever wrote them.
"""

import re
import sys
import traceback
from collections.abc import Iterator
from typing import Final, cast

from structlog.typing import EventDict, WrappedLogger
from temporalio.exceptions import ApplicationError

from turnsaga.errors import DeclarationError, EngineUnavailable, ModelUnavailable, StoreError

__all__ = ["without_texts"]

# These say what is wrong with a part of the deployment, in our own words.
_SPEAKABLE: Final = (DeclarationError, EngineUnavailable, ModelUnavailable, StoreError)
_FRAMES: Final = 30
_CHAIN: Final = 10
_DEBUG: Final = "debug"
# "path:line: Category: text", as the standard library writes a warning.
_WARNING: Final = re.compile(r"(\S+:\d+: \w+):.*", re.DOTALL)


def without_texts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Return the event with its error told by types and places alone, unless it is a DEBUG one.

    The text of the line itself loses what it repeats of the error's; a foreign one, which may quote
    anything on its further lines, is cut to the first.
    """
    if event.get("level") == _DEBUG:
        return event
    error = _error(event.pop("exc_info", None))
    text = str(event.get("event", ""))
    if not event.get("_from_structlog", True):
        text = text.partition("\n")[0]
        text = _WARNING.sub(r"\1", text) if event.get("logger") == "py.warnings" else text
    if error is not None:
        chain = tuple(_chain(error))
        event["exception"] = "\n".join(line for each in chain for line in _told(each))
        for said in sorted({said for each in chain for said in _texts(each)}, key=len, reverse=True):
            text = text.replace(said, "…")
    event["event"] = text
    return event


def _error(info: object) -> BaseException | None:
    """Return an event's error: ``exc_info`` is an error, a triple of one, or asks for the present one."""
    if info is True:
        return sys.exc_info()[1]
    if isinstance(info, tuple):
        info = cast("tuple[object, ...]", info)[1]
    return info if isinstance(info, BaseException) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it, each once."""
    seen: set[int] = set()
    waiting = [error]
    while waiting and len(seen) < _CHAIN:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting.extend(getattr(each, "exceptions", ()))  # of a group
        if each.__cause__ is not None:
            waiting.append(each.__cause__)
        elif each.__context__ is not None and not each.__suppress_context__:
            waiting.append(each.__context__)


def _told(error: BaseException) -> Iterator[str]:
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    if isinstance(error, _SPEAKABLE):
        yield f"{kind}: {error}"
    elif isinstance(error, ApplicationError) and error.type:
        yield f"{kind} ({error.type})"
    else:
        yield kind
    for frame in traceback.extract_tb(error.__traceback__)[-_FRAMES:]:
        yield f"  at {frame.filename}:{frame.lineno} in {frame.name}"


def _texts(error: BaseException) -> Iterator[str]:
    """Yield what a line may have repeated of an error."""
    if isinstance(error, _SPEAKABLE):
        return
    parts: tuple[object, ...] = error.args
    for part in (error, *parts):
        for write in (repr, str):
            try:
                said = write(part)
            except Exception:  # noqa: BLE001, S112  # a foreign class may raise anything; then no line has it
                continue
            # Shorter ones are words that any line may have.
            if len(said) > 3:
                yield said
