"""Sizes and contents at their worst, through whole turns: from a tool's own code, and from the model."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter
from temporalio.client import Client

from activities.model import history
from tests.stack import WHO, Turns, call, eventually, reply, say, turns_over
from tests.workflows.hostile import ERRORS, LARGE, REASONS, VALUES
from tests.workflows.steps import THINKING
from turnsaga.ledger import State, TurnState
from turnsaga.models import StepRef
from turnsaga.store import Started
from turnsaga.testing import FakeSystem, Note
from turnsaga.tools import Call, Committed, EffectTool, Found, JsonObject, Limits, Once, Prepared, ReadTool

_LIMITS = Limits(
    send_by=timedelta(seconds=5),
    landing_window=timedelta(milliseconds=200),
    sends=2,
    resolve=timedelta(seconds=20),
    undo_sends=2,
    undo_total=timedelta(seconds=30),
)


def calls_of(kinds: Mapping[str, object]) -> dict[str, Any]:
    """Return a reply that asks for one note of each kind, side by side."""
    return reply(*(call("note_down", identity=kind) for kind in kinds))


def once(system: FakeSystem, **declared: Any) -> EffectTool[Note]:
    fields: dict[str, Any] = {"commit": system.commit_once, "repeat": Once(), "limits": _LIMITS}
    return system.tool("note_down", **{**fields, **declared})


def odd(kind: str) -> Any:
    """Return what a type checker would refuse."""
    return VALUES[kind]()


def counted(system: FakeSystem, phase: str) -> Counter[str]:
    """Return how often each identity was called in that phase."""
    return Counter(identity for called, _, identity in system.calls if called == phase)


async def told(turns: Turns, started: Started, step: int = 1) -> dict[str, tuple[str, bool]]:
    """Return what the model is given of each call of a step now, by identity, in a form that can be sent."""
    ref = StepRef(tenant=started.ref.tenant, turn=started.ref.turn, step=step + 1)
    past = (await turns.store.step_context(ref)).history
    ModelMessagesTypeAdapter.dump_json(history(past, ""))
    found = past[-1].steps[step - 1].calls
    return {str(json.loads(each.arguments)["identity"]): (each.result, each.is_error) for each in found}


async def must_be_readable(turns: Turns, started: Started) -> None:
    """Fail unless the turn's view and events are JSON in UTF-8, and of a size that can be shown."""
    view = (await turns.view(started)).model_dump(mode="json")
    for shown in (view, *(event.data for event in await turns.events(started))):
        encoded = json.dumps(shown, ensure_ascii=False, allow_nan=False).encode()
        assert len(encoded) < 200_000


async def states(turns: Turns, started: Started) -> dict[str, str]:
    return {effect.identity or "": effect.state.value for effect in (await turns.view(started)).effects}


async def test_commit_that_returns_anything_is_done_once_told_and_undone_from_its_receipt(
    client: Client, tmp_path: Path
) -> None:
    """A11.1, A23.1, A24.1: of each kind, both as a part of the receipt and as the result."""
    system, receipts = FakeSystem(), dict[str, JsonObject]()

    async def commit(request: JsonObject, told_: Call) -> Committed:
        done = await system.commit_once(request, told_)
        kind = request["identity"]
        return Committed({**done.receipt, "odd": odd(kind)}, result=odd(kind))

    async def undo(request: JsonObject, receipt: JsonObject, told_: Call) -> Any:
        receipts[request["identity"]] = receipt
        return await system.undo(request, receipt, told_)

    async with turns_over(client, tmp_path, [once(system, commit=commit, compensate=undo)]) as turns:
        started = await turns.start(calls_of(VALUES), THINKING)

        async def all_done() -> bool:
            return set((await states(turns, started)).values()) == {"committed"}

        await eventually(all_done, within=60, what="all commits")
        results = await told(turns, started)
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started, within=60)
        after = await states(turns, started)
        undone = await told(turns, started)
        await must_be_readable(turns, started)
        await turns.must_agree(system.truth(), started)

    assert view.state is TurnState.ABORTED
    assert after == dict.fromkeys(VALUES, "compensated")
    assert counted(system, "commit") == dict.fromkeys(VALUES, 1)
    assert counted(system, "undo") == dict.fromkeys(VALUES, 1)
    assert all(not is_error and len(text) < 300_000 for text, is_error in results.values())
    assert all("done, then undone" in text for text, _ in undone.values())
    assert receipts["3 MB"]["odd"] == LARGE
    assert receipts["3 MB of members"]["odd"] == VALUES["3 MB of members"]()
    assert receipts["NUL"]["odd"] == "a\x00b"
    assert receipts["half a surrogate pair"]["odd"] == "a\ud83d"
    assert results["an emoji"] == ("\U0001f600", False)


@pytest.mark.parametrize("kind", ["an object", "3 MB", "one that can't be read"])
async def test_commit_that_returns_no_receipt_at_all_is_done_once_and_told(
    client: Client, tmp_path: Path, kind: str
) -> None:
    system = FakeSystem()

    def commit(request: JsonObject, told_: Call) -> Any:
        system.calls.append(("commit", told_.key, str(request["identity"])))
        system.applied.append((told_.key, str(request["identity"])))
        return VALUES[kind]()

    async with turns_over(client, tmp_path, [once(system, commit=commit)]) as turns:
        started = await turns.start(reply(call("note_down", identity=kind)), say("{{results}}"))
        view = await turns.settled(started)
        await must_be_readable(turns, started)
        await turns.must_agree(system.truth(), started)

    assert view.effects[0].state is State.COMMITTED
    assert counted(system, "commit") == {kind: 1}


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain function"])
async def test_commit_that_raises_anything_after_its_effect_is_found_and_never_run_twice(
    client: Client, tmp_path: Path, *, plain: bool
) -> None:
    system, kinds = FakeSystem(), {**ERRORS, **REASONS}

    def apply(request: JsonObject, told_: Call) -> Committed:
        system.calls.append(("commit", told_.key, str(request["identity"])))
        system.applied.append((told_.key, str(request["identity"])))
        raise kinds[request["identity"]]()  # noqa: RSE102  # made by the call

    async def commit(request: JsonObject, told_: Call) -> Committed:
        return apply(request, told_)

    tool = once(system, commit=apply if plain else commit)
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(calls_of(kinds), say("ok"))
        view = await turns.settled(started, within=60)
        results = await told(turns, started)
        await must_be_readable(turns, started)
        after = await states(turns, started)

    assert view.state is TurnState.COMPLETED
    assert counted(system, "commit") == dict.fromkeys(kinds, 1)
    # What says that it isn't applied is believed: it is the tool that lies here.
    assert after == {kind: "failed" if kind.startswith("not applied") else "committed" for kind in kinds}
    assert all(text.isprintable() and len(text) < 10_000 for text, _ in results.values())


@pytest.mark.parametrize("phase", ["prepare", "current", "read"])
async def test_anything_raised_before_a_commit_runs_nothing_and_is_told(
    client: Client, tmp_path: Path, phase: str
) -> None:
    system = FakeSystem()

    async def prepare(arguments: Note, told_: Call) -> Prepared:
        del told_
        if phase == "prepare":
            raise ERRORS[arguments.identity]()  # noqa: RSE102  # made by the call
        return Prepared({"identity": arguments.identity}, version="1")

    def current(request: JsonObject, told_: Call) -> str:
        del told_
        raise ERRORS[request["identity"]]()  # noqa: RSE102  # made by the call

    async def read(arguments: Note, told_: Call) -> str:
        del told_
        raise ERRORS[arguments.identity]()  # noqa: RSE102  # made by the call

    tools: dict[str, Any] = {
        "prepare": once(system, prepare=prepare),
        "current": once(system, prepare=prepare, current=current, commits="turn_end"),
        "read": ReadTool(
            name="note_down", description="Read.", arguments=Note, read=read, says="read {identity}"
        ),
    }
    policies = {"note_down": "turn_end"} if phase == "current" else None
    async with turns_over(client, tmp_path, [tools[phase]]) as turns:
        started = await turns.start(calls_of(ERRORS), say("ok"), policies=policies)
        view = await turns.settled(started, within=60)
        results = await told(turns, started)
        await must_be_readable(turns, started)
        after = await states(turns, started)

    assert view.state is TurnState.COMPLETED
    assert after == (dict.fromkeys(ERRORS, "failed") if phase == "current" else {})
    assert system.calls == []
    assert all(is_error and len(text) < 1000 for text, is_error in results.values()), results


async def test_look_up_that_raises_or_answers_anything_is_asked_again_until_it_says_something(
    client: Client, tmp_path: Path
) -> None:
    system = FakeSystem(after=lambda phase, _: RuntimeError("lost") if phase == "commit" else None)
    kinds = [*ERRORS, *VALUES]

    async def look_up(request: JsonObject, told_: Call) -> Any:
        found = await system.look_up(request, told_)
        kind = request["identity"]
        if counted(system, "lookup")[kind] > 1:
            return Found({"key": told_.effect_key}, result=odd(kind)) if kind in VALUES else found
        if kind in VALUES:
            return VALUES[kind]()
        raise ERRORS[kind]()  # noqa: RSE102  # made by the call

    async with turns_over(client, tmp_path, [once(system, lookup=look_up)]) as turns:
        started = await turns.start(calls_of(dict.fromkeys(kinds)), say("ok"))
        view = await turns.settled(started, within=60)
        await told(turns, started)
        await must_be_readable(turns, started)
        await turns.must_agree(system.truth(), started)
        after = await states(turns, started)

    assert view.state is TurnState.COMPLETED
    assert after == dict.fromkeys(kinds, "committed")
    assert counted(system, "commit") == dict.fromkeys(kinds, 1)


@pytest.mark.parametrize("phase", ["compensate", "check_undone"])
async def test_undo_that_raises_anything_uses_up_its_budget_and_is_shown(
    client: Client, tmp_path: Path, phase: str
) -> None:
    system, kinds = FakeSystem(), {**ERRORS, **REASONS}
    if phase == "check_undone":
        # Each is read back again until its whole time is over, one after the other.
        kinds = {kind: kinds[kind] for kind in ("no text", "3 MB of text", "unknown without a reason")}

    async def undo(request: JsonObject, receipt: JsonObject, told_: Call) -> Any:
        done = await system.undo(request, receipt, told_)
        if phase == "compensate":
            raise kinds[request["identity"]]()  # noqa: RSE102  # made by the call
        return done

    def check(request: JsonObject, receipt: JsonObject, told_: Call) -> bool:
        del receipt, told_
        raise kinds[request["identity"]]()  # noqa: RSE102  # made by the call

    tool = once(
        system,
        compensate=undo,
        check_undone=check if phase == "check_undone" else None,
        limits=replace(_LIMITS, undo_total=timedelta(seconds=5)),
    )
    async with turns_over(client, tmp_path, [tool]) as turns:
        started = await turns.start(calls_of(kinds), THINKING)

        async def all_done() -> bool:
            return set((await states(turns, started)).values()) == {"committed"}

        await eventually(all_done, within=60, what="all commits")
        await turns.turns.abort(WHO, started.ref.turn)
        view = await turns.settled(started, within=120)
        await told(turns, started)
        await must_be_readable(turns, started)
        await turns.must_agree(system.truth(), started)
        after = await states(turns, started)

    assert view.state is TurnState.ABORTED
    assert after == dict.fromkeys(kinds, "compensation_failed")
    assert counted(system, "commit") == dict.fromkeys(kinds, 1)
    assert all(effect.needs_attention for effect in view.effects)


_ODD_ARGUMENTS: Mapping[str, tuple[str, int]] = {
    # As much as a message takes, in which a script stands.
    "400 kB": (json.dumps({"identity": "400 kB", "text": LARGE[:400_000]}), 1),
    "NUL": (json.dumps({"identity": "NUL", "text": "a\x00b"}), 1),
    "an emoji": (json.dumps({"identity": "an emoji", "text": "\U0001f600"}), 1),
    "half a surrogate pair": ('{"identity":"half a surrogate pair","text":"\\ud83d"}', 0),
    "NaN": ('{"identity":"NaN","text":NaN}', 0),
    "10000 digits": ('{"identity":"10000 digits","text":1' + "0" * 10_000 + "}", 0),
    "deep": ('{"identity":"deep","text":' + "[" * 5000 + "]" * 5000 + "}", 0),
    "400 kB of a name": ('{"identity":"400 kB of a name","' + LARGE[:400_000] + '":1}', 0),
}


@pytest.mark.parametrize("kind", _ODD_ARGUMENTS)
async def test_arguments_of_any_size_and_content_are_run_once_or_refused(
    client: Client, tmp_path: Path, kind: str
) -> None:
    """A11.1, A24.1: an argument that its tool takes is an effect, whatever its size."""
    raw, applied = _ODD_ARGUMENTS[kind]
    system = FakeSystem()
    async with turns_over(client, tmp_path, [once(system)]) as turns:
        started = await turns.start({"calls": [{"tool": "note_down", "raw_args": raw}]}, say("{{results}}"))
        view = await turns.settled(started)
        events = await turns.events(started)
        await must_be_readable(turns, started)
        await turns.must_agree(system.truth(), started)
    text = "".join(event.data["text"] for event in events if event.kind == "text_delta")

    assert view.state is TurnState.COMPLETED
    assert len(system.applied) == applied
    assert ("not run" in text) is (applied == 0)
    assert len(text) < 10_000
