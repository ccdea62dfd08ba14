"""The death of another part than the worker, with turns under way at three stages each."""

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.api import LETTER, MONEY, Stack
from tests.stack import call, eventually, reply, say
from turnsaga.testing import disorder

__all__ = ["AtTheKill", "Ended", "Open", "answered", "begin", "judge"]

# One after the other is tried: a machine that is busy may need longer than a vendor takes to answer.
_ANSWERS_AFTER_MS: Final = (4000, 12_000, 36_000)
TOOLS: Final = ("charge_card", "create_record", "post_message")
_THINKING: Final = say("thinking", delay_ms=300_000)


@dataclass(frozen=True)
class Open:
    """A turn that is under way at the kill: at which stage, with which tools, and whether it was stopped."""

    stage: str
    tool: str
    stopped: bool
    turn: str
    identities: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """What became of one of them."""

    stage: str
    tool: str
    stopped: bool
    turn: str
    outcomes: tuple[str, ...]
    person: bool
    undone: int
    disorder: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class AtTheKill:
    """The turns that are under way; ``held`` is the mail that waits for its user's yes.

    ``on_the_wire`` are the requests that aren't answered yet, each by its identity and what it is.
    """

    turns: Sequence[Open]
    on_the_wire: frozenset[tuple[str, str]]
    held: Mapping[str, Any]


async def begin(stack: Stack, name: str) -> AtTheKill:
    """Bring turns to their stages: commits and undos are on the wire and unanswered when this returns."""
    for answers_after_ms in _ANSWERS_AFTER_MS:
        under_way = await _begun(stack, f"{name}-{answers_after_ms}", answers_after_ms)
        if under_way is not None:
            return under_way
    raise AssertionError("answers came before the kill, however late they were")


async def _begun(stack: Stack, name: str, answers_after_ms: int) -> AtTheKill | None:
    await stack.sandbox.delete("/_control")
    undone = await _two_committed(stack, name)
    asked = [await _asked(stack, f"{name}-{word}", stopped=word == "no") for word in ("yes", "no")]
    for system in ("pay", "crm", "hook"):
        await stack.knobs(system, latency_ms=answers_after_ms)
    committing = [
        await _committing(stack, f"{name}-{'stopped' if stopped else 'goes-on'}", tool, stopped=stopped)
        for stopped in (False, True)
        for tool in TOOLS
    ]
    await _stop(stack, undone)
    on_the_wire = frozenset(
        {(turn.identities[-1], "apply") for turn in committing} | {(undone.identities[-1], "undo")}
    )
    await eventually(lambda: _arrived(stack, on_the_wire), within=60, what="every request at its vendor")
    turns = [*committing, *asked, undone]
    for turn in turns:
        if turn.stopped and turn is not undone:
            await _stop(stack, turn)
    held = (await stack.view(asked[0].turn))["effects"][0]
    if await answered(stack, on_the_wire):
        return None
    return AtTheKill(turns, on_the_wire, held)


async def answered(stack: Stack, requests: AbstractSet[tuple[str, str]]) -> AbstractSet[tuple[str, str]]:
    """Return those of the requests that their vendor has answered."""
    calls = (await stack.sandbox.get("/_truth")).json()["calls"]
    return requests & {(each["identity"], each["op"]) for each in calls if each["answered"]}


async def judge(stack: Stack, turn: Open, *, since: float) -> Ended:
    """Wait for the turn's end, and hold it against what really happened."""
    view = await stack.settled(turn.turn, within=90)
    seconds = time.monotonic() - since
    await stack.must_agree(view)
    calls = (await stack.sandbox.get("/_truth")).json()["calls"]
    landed = [each for each in calls if each["op"] == "undo" and each["applied_at"] is not None]
    return Ended(
        stage=turn.stage,
        tool=turn.tool,
        stopped=turn.stopped,
        turn=view["state"],
        outcomes=tuple(effect["state"] for effect in view["effects"]),
        person=any(effect["needs_attention"] for effect in view["effects"]),
        undone=sum(each["identity"] in turn.identities for each in landed),
        disorder=disorder(await stack.events(turn.turn)),
        seconds=round(seconds, 1),
    )


async def _two_committed(stack: Stack, name: str) -> Open:
    record = f"{name}-undone"
    turn = await stack.start(
        reply(call("create_record", kind="ticket", id=record)),
        reply(call("charge_card", invoice=record, **MONEY)),
        _THINKING,
    )

    async def there() -> bool:
        return [effect["state"] for effect in (await stack.view(turn))["effects"]] == ["committed"] * 2

    await eventually(there, what="the commits of the turn that is undone")
    return Open("undo in flight", "charge_card, create_record", True, turn, (f"ticket/{record}", record))


async def _asked(stack: Stack, invoice: str, *, stopped: bool) -> Open:
    turn = await stack.start(
        reply(call("send_invoice_email", invoice=invoice, **LETTER)),
        say("Done."),
        policies={"send_invoice_email": "confirmed"},
    )
    await stack.held(turn)
    return Open("held", "send_invoice_email", stopped, turn, (invoice,))


async def _committing(stack: Stack, name: str, tool: str, *, stopped: bool) -> Open:
    arguments, identity = {
        "charge_card": ({"invoice": name, **MONEY}, name),
        "create_record": ({"kind": "ticket", "id": name}, f"ticket/{name}"),
        "post_message": ({"channel": "ops", "text": name}, f"ops/{name}"),
    }[tool]
    turn = await stack.start(
        reply(call(tool, **arguments)), say("Done."), policies={"post_message": "immediate!"}
    )
    return Open("commit in flight", tool, stopped, turn, (identity,))


async def _stop(stack: Stack, turn: Open) -> None:
    answer = await stack.web.post(f"/v1/turns/{turn.turn}/abort")
    assert answer.status_code == 202, answer.text


async def _arrived(stack: Stack, requests: AbstractSet[tuple[str, str]]) -> bool:
    calls = (await stack.sandbox.get("/_truth")).json()["calls"]
    return requests <= {(each["identity"], each["op"]) for each in calls}
