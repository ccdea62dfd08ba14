"""The knobs of each system: what they are, what they are aimed at, and what is left of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.calls import LoggedCall, Op
from sandbox.idempotency import KEY_LIFETIME_S

_DAY_MS = 86_400_000

Milliseconds = Annotated[int, Field(ge=0, le=_DAY_MS)]

# Known to the control, but only systems that run jobs have them.
JOB_KNOBS = frozenset({"refuse_cancel", "cancel_says", "complete_after_ms", "webhook"})


class _Knob(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Fail(_Knob):
    """Let the next ``times`` calls fail, after they were applied or instead of it."""

    status: Annotated[int, Field(ge=400, le=599)] = 500
    times: Annotated[int, Field(ge=0)] = 1
    applied: bool = False


class Only(_Knob):
    """The calls that a system's knobs are aimed at: those for which all that is given fits.

    ``path`` fits a path (with or without the system's mount) that equals it, starts with
    it, or matches it as a shell pattern.
    """

    method: str | None = None
    path: str | None = None
    op: Annotated[Op | None, Field(strict=False)] = None
    identity: str | None = None

    def fits(self, call: LoggedCall) -> bool:
        return (
            (self.method is None or self.method.upper() == call.method)
            and (self.op is None or self.op is call.op)
            and (self.identity is None or self.identity == call.identity)
            and (self.path is None or self._fits_path(self.path, call))
        )

    def names_lookups(self) -> bool:
        return self.op is Op.LOOKUP or self.method is not None or self.path is not None

    @staticmethod
    def _fits_path(wanted: str, call: LoggedCall) -> bool:
        paths = (call.path, f"/{call.system}{call.path}")
        return any(path.startswith(wanted) or fnmatchcase(path, wanted) for path in paths)


class Knobs(_Knob):
    """One system's knobs."""

    latency_ms: Milliseconds = 0
    apply_after_ms: Milliseconds = 0
    drop_response: Annotated[int, Field(ge=0)] = 0
    fail: Fail | None = None
    remember_errors: bool = False
    key_ttl_s: Annotated[float, Field(ge=0)] = KEY_LIFETIME_S
    conflict_while_running: bool = False
    read_lag_ms: Milliseconds = 0
    only: Only | None = None


_UNTOUCHED = Knobs()


def describe(error: ValidationError) -> list[dict[str, str]]:
    """Return what is wrong with which knob."""
    return [
        {
            "knob": ".".join(map(str, item["loc"])),
            "message": _complaint(item["type"], item["loc"], item["msg"]),
        }
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def _complaint(kind: str, loc: tuple[int | str, ...], message: str) -> str:
    if kind != "extra_forbidden":
        return message
    if loc[0] in JOB_KNOBS:
        return "only a system that runs jobs has this knob, and this one runs none"
    known = {"fail": Fail.model_fields, "only": Only.model_fields}.get(str(loc[0]), Knobs.model_fields)
    return f"unknown; there are {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What a call's answer is replaced with: a failure, or a cut connection."""

    fail: Fail | None = None
    cut: bool = False


class Panel:
    """The knobs of all systems. They live as long as the process."""

    def __init__(self, systems: Iterable[str]) -> None:
        self._knobs = dict.fromkeys(systems, _UNTOUCHED)

    @property
    def systems(self) -> tuple[str, ...]:
        return tuple(self._knobs)

    def put(self, system: str, knobs: Knobs) -> None:
        """Replace a system's knobs."""
        self._knobs[system] = knobs

    def clear(self) -> None:
        """Put all knobs back."""
        self._knobs = dict.fromkeys(self._knobs, _UNTOUCHED)

    def show(self, system: str) -> dict[str, object]:
        """Return a system's knobs as they were set, with what is left of the counted ones."""
        return self._knobs[system].model_dump(mode="json", exclude_unset=True)

    def aimed_at(self, call: LoggedCall) -> Knobs:
        """Return the knobs that count for a call."""
        knobs = self._knobs[call.system]
        return knobs if knobs.only is None or knobs.only.fits(call) else _UNTOUCHED

    def take_fault(self, call: LoggedCall) -> Fault:
        """Return the fault that is the call's turn to have, and count it down.

        One call has one fault; a failure goes before a cut. A lookup takes none unless
        ``only`` names its op, method or path.
        """
        knobs = self.aimed_at(call)
        if call.op is Op.LOOKUP and not (knobs.only is not None and knobs.only.names_lookups()):
            return Fault()
        if knobs.fail is not None and knobs.fail.times > 0:
            left = knobs.fail.model_copy(update={"times": knobs.fail.times - 1})
            self._knobs[call.system] = knobs.model_copy(update={"fail": left})
            return Fault(fail=knobs.fail)
        if knobs.drop_response > 0:
            self._knobs[call.system] = knobs.model_copy(update={"drop_response": knobs.drop_response - 1})
            return Fault(cut=True)
        return Fault()
