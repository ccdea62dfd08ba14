"""Every answer that a commit can get, made on the vendors' wire, and what the engine does about it.

The table itself is ``turnsaga.outcomes``; ``outcome_cells`` says how each answer is made, and what must be
true in the end whatever the table says.
"""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.deployment import deployment_tools
from activities.settings import VendorSettings
from activities.tools import messages, payments, records
from tests.oracle import truth_of
from tests.stack import SandboxProcess, Turns, call, eventually, free_port, reply, say, turns_over
from tests.workflows.outcome_cells import CALL_S, CELLS, IMPOSSIBLE, TARGETS, Cell
from tests.workflows.recorded_wire import RecordedWire, Request, Twist, recorded_wire
from turnsaga.errors import ToolOutcome
from turnsaga.ledger import State, TurnState
from turnsaga.models import EffectView, TurnEvent
from turnsaga.outcomes import KNOWN, Answer, learned, then
from turnsaga.settle import Action
from turnsaga.tools import EffectTool, Limits, Tools

_ids = itertools.count(1)
_LIMITS = Limits(
    call=timedelta(seconds=CALL_S),
    send_by=timedelta(seconds=2),
    landing_window=timedelta(milliseconds=500),
    sends=2,
    resolve=timedelta(seconds=20),
)
_TOLD = {
    State.COMMITTED: "{",
    State.FAILED: "not done",
    State.UNKNOWN: "outcome unknown: it may have been done and is being checked; do not repeat it",
}


@dataclass(frozen=True)
class Bench:
    """Turns whose vendors are reached by a wire, and turns whose vendors are not reached at all."""

    wired: Turns
    deaf: Turns
    wire: RecordedWire
    sandbox: SandboxProcess


@pytest.fixture(scope="module")
async def shared_bench(
    client: Client, sandbox: SandboxProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Bench]:
    folder: Path = tmp_path_factory.mktemp("outcomes")
    async with (
        recorded_wire(str(sandbox.http.base_url)) as (wire, url),
        _turns(client, folder, _at(sandbox.vendor, url)) as wired,
        _turns(client, folder, _at(sandbox.vendor, f"http://127.0.0.1:{free_port()}")) as deaf,
    ):
        yield Bench(wired, deaf, wire, sandbox)


@pytest.fixture
async def bench(shared_bench: Bench) -> AsyncIterator[Bench]:
    """The bench with vendors that behave, until the test says otherwise."""
    await shared_bench.sandbox.clear()
    shared_bench.wire.sent.clear()
    shared_bench.wire.twist = None
    yield shared_bench
    await shared_bench.sandbox.clear()


def _at(vendor: VendorSettings, url: str) -> VendorSettings:
    return vendor.model_copy(
        update={"pay_url": f"{url}/pay", "crm_url": f"{url}/crm", "hook_url": f"{url}/hook"}
    )


@asynccontextmanager
async def _turns(client: Client, folder: Path, vendor: VendorSettings) -> AsyncIterator[Turns]:
    async with deployment_tools(vendor) as tools:
        quick = [replace(tool, limits=_LIMITS) if isinstance(tool, EffectTool) else tool for tool in tools]
        async with turns_over(client, folder, Tools(quick)) as turns:
            yield turns


def test_every_answer_of_every_system_is_made_or_said_to_be_impossible() -> None:
    made = {(cell.answer, cell.system) for cell in CELLS}

    assert made | IMPOSSIBLE.keys() == set(itertools.product(KNOWN, TARGETS))
    assert made & IMPOSSIBLE.keys() == set()
    assert set(KNOWN) == set(Answer)
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_tools_promise_what_the_table_takes_them_to(shared_bench: Bench) -> None:
    for target in TARGETS.values():
        tool = shared_bench.wired.tools.effect(target.tool)

        assert (tool.system, tool.keyed, tool.lookup is not None, tool.reversible) == (
            target.system,
            target.keyed,
            target.can_look_up,
            target.reversible,
        )


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
async def test_answer_is_followed_by_what_the_table_says_and_ends_right(
    bench: Bench, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, sandbox = bench.deaf if cell.nobody_listens else bench.wired, bench.sandbox
    arguments, identity = _named(cell.system)
    read = _answers_read(monkeypatch)
    await sandbox.knobs(cell.system, **cell.knobs, only={"op": "apply", "identity": identity})
    bench.wire.twist = _twist(cell, sandbox, identity)
    before = len((await sandbox.truth())["calls"])
    started = await turns.start(
        reply(call(cell.target.tool, **arguments)),
        say("{{results}}"),
        policies={"post_message": "immediate!"},
    )
    view = await turns.settled(started)
    events = await turns.events(started)
    calls = [each for each in (await sandbox.truth())["calls"][before:] if each["system"] == cell.system]
    effect = view.effects[0]

    expected = then(
        KNOWN[cell.answer],
        keyed=cell.target.keyed,
        can_look_up=cell.target.can_look_up,
        reversible=cell.target.reversible,
    )
    # A call that is cut off when its time is over is read by nobody: the engine itself takes it for lost.
    unread = {Answer.DONE, Answer.TIMED_OUT}
    assert read[:1] == [cell.answer] or (cell.answer in unread and read == [])
    ops = [each["op"] for each in calls][1 if cell.ahead else 0 :]
    assert _what_followed(effect, ops, events) == expected
    assert view.state is TurnState.COMPLETED
    assert effect.state is cell.ends
    assert effect.needs_attention is (cell.ends is State.UNKNOWN)
    assert await _counts(sandbox, cell.system, identity) == (cell.applied, cell.applied)
    assert {request.key for request in bench.wire.sent if request.method == "POST"} <= {effect.key}
    await turns.must_agree(await truth_of(sandbox), started)
    _must_have_been_told_the_truth(cell, effect, events)


def _answers_read(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """Return the list in which the kinds of answers stand that tools read from now on, other than success."""
    read = list[Answer]()

    def noted(answer: Answer, who: str, detail: str | int | None = None) -> ToolOutcome:
        read.append(answer)
        return learned(answer, who, detail)

    for module in (messages, payments, records):
        monkeypatch.setattr(module, "learned", noted)
    return read


def _what_followed(effect: EffectView, ops: Sequence[str], events: Sequence[TurnEvent]) -> State | Action:
    """Return what the engine did after the first answer, as the vendor and the turn's events both show it."""
    kinds = [event.kind for event in events if event.kind.startswith("tool_")]
    after = kinds[kinds.index("tool_committing") + 1 :]
    if len(ops) > 1:
        assert after[0] == "tool_unknown"
        if ops[1] == "apply":
            assert after[1] == "tool_committing", (
                "it is sent again as the ledger says, and not behind its back"
            )
            return Action.SEND_AGAIN
        assert ops.count("apply") == 1
        assert "tool_committing" not in after
        return Action.LOOK_UP
    if effect.state is State.UNKNOWN:
        assert after == ["tool_unknown", "tool_attention"]
        return Action.HAND_OVER
    assert after == [f"tool_{effect.state}"]
    return effect.state


def _must_have_been_told_the_truth(cell: Cell, effect: EffectView, events: Sequence[TurnEvent]) -> None:
    text = "".join(event.data["text"] for event in events if event.kind == "text_delta")
    assert _TOLD[cell.ends] in text
    assert ("failed" in text) is False
    for event in events:
        if event.kind in {"tool_unknown", "tool_attention"}:
            assert "outcome not known yet" in event.data["summary"]
            assert "fail" not in f"{event.data['summary']} {event.data['error']}"
    # What isn't known is said to be so before it is known, and its end once.
    said = [event.kind for event in events if event.data.get("effect") == effect.effect]
    assert said.count("tool_committed") == (cell.ends is State.COMMITTED)
    assert said.count("tool_failed") == (cell.ends is State.FAILED)


def _named(system: str) -> tuple[dict[str, Any], str]:
    """Return arguments that nothing else has, and the business identity that they are about."""
    number = next(_ids)
    match system:
        case "pay":
            name = f"INV-OT{number}"
            return {"customer": "cus_1", "amount": "10.00", "currency": "EUR", "invoice": name}, name
        case "crm":
            return {"kind": "ticket", "id": f"OT{number}"}, f"ticket/OT{number}"
        case _:
            return {"channel": "ops", "text": f"outcome {number}"}, f"ops/outcome {number}"


def _twist(cell: Cell, sandbox: SandboxProcess, identity: str) -> Twist | None:
    async def arrived() -> None:
        async def there() -> bool:
            return any(each["identity"] == identity for each in (await sandbox.truth())["calls"])

        await eventually(there, what="the call that goes ahead")

    match cell.ahead:
        case None:
            return None if cell.says is None else Twist(says=cell.says)
        case "another body":
            return Twist(ahead=_of_another_body)
        case "the same, answered":
            return Twist(ahead=lambda request: request)
        case "the same, still running":
            return Twist(ahead=lambda request: request, until=arrived)


def _of_another_body(request: Request) -> Request:
    return request.with_body(request.body + b"&description=by+an+older+version")


async def _counts(sandbox: SandboxProcess, system: str, identity: str) -> tuple[int, int]:
    """Return how often the effect was applied downstream, and how often it stands."""
    found = [
        true
        for true in (await truth_of(sandbox)).effects
        if (true.system, true.identity) == (system, identity)
    ]
    return sum(true.applied for true in found), sum(true.standing for true in found)
