"""``turnsaga verify`` on real vendors: agreement, drift of each kind, silence, and what --fix does."""

import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.deployment import deployment_tools
from tests.cli.conftest import Deployed
from tests.stack import WHO, SandboxProcess, Turns, call, eventually, free_port, reply, say, turns_over
from turnsaga.cli._questions import Owners
from turnsaga.cli._session import Session
from turnsaga.cli._verify import Scope, verify
from turnsaga.ledger import State
from turnsaga.store import Started
from turnsaga.testing import Truth
from turnsaga.tools import EffectTool, Tools

_ids = itertools.count(1)
THINKING = say(*["thinking "] * 400, delay_ms=50)


def charge(invoice: str) -> Mapping[str, Any]:
    return call("charge_card", customer="cus_1", amount="10.00", currency="EUR", invoice=invoice)


def create(record: str) -> Mapping[str, Any]:
    return call("create_record", kind="ticket", id=record, fields={"title": "seen"})


def new(what: str) -> str:
    return f"{what}-{next(_ids)}"


async def act(sandbox: SandboxProcess, system: str, identity: str, op: str = "delete", **more: Any) -> None:
    answer = await sandbox.http.post("/_act", json={"system": system, "op": op, "identity": identity, **more})
    answer.raise_for_status()


async def compared(
    deployed: Deployed, started: Started, *, fix: bool = False, **bounds: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the lines and the summary of one turn's comparison, as --json has them."""
    async with Session.open(deployed.deployment) as session:
        lines, summary = await verify(session, Scope(turn=started.ref.turn, **bounds), fix=fix)
    return [line.model_dump(mode="json") for line in lines], summary.model_dump(mode="json")


async def by_command(
    deployed: Deployed, started: Started, *options: str, code: int = 0, **env: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """As ``compared``, by the command, which must end with that code."""
    *lines, summary = await deployed.lines("verify", "--turn", started.ref.turn, *options, code=code, **env)
    return lines, summary


async def test_what_stands_and_what_was_undone_agree(deployed: Deployed) -> None:
    record = new("VA")
    kept = await deployed.turns.start(
        reply(charge(new("VA")), create(record)),
        reply(call("update_record", kind="ticket", id=record, fields={"title": "changed"})),
    )
    await deployed.turns.settled(kept)
    again = new("VA")
    undone = await deployed.turns.start(
        reply(charge(new("VA")), create(again)),
        reply(call("update_record", kind="ticket", id=again, fields={"title": "changed"})),
        THINKING,
    )
    await deployed.turns.reaches(undone, "committed", "update_record")
    await deployed.turns.turns.abort(WHO, undone.ref.turn)
    view = await deployed.turns.settled(undone)

    assert {effect.state for effect in view.effects} == {State.COMPENSATED}
    for started in (kept, undone):
        lines, summary = await by_command(deployed, started)
        assert lines == []
        assert (summary["checked"], summary["agree"], summary["more"]) == (3, 3, False)


async def test_record_made_anew_by_a_later_turn_is_no_drift_of_the_undone_one(deployed: Deployed) -> None:
    record = new("VN")
    undone = await deployed.turns.start(reply(create(record)), THINKING)
    await deployed.turns.reaches(undone, "committed", "create_record")
    await deployed.turns.turns.abort(WHO, undone.ref.turn)
    await deployed.turns.settled(undone)
    later = await deployed.turns.start(reply(create(record)))
    await deployed.turns.settled(later)

    for started in (undone, later):
        _, summary = await compared(deployed, started)
        assert summary["agree"] == 1


async def test_what_somebody_removed_at_the_vendor_differs(
    deployed: Deployed, sandbox: SandboxProcess
) -> None:
    invoice, record = new("VR"), new("VR")
    started = await deployed.turns.start(
        reply(charge(invoice), create(record)),
        reply(call("update_record", kind="ticket", id=record, fields={"title": "changed"})),
    )
    before = await deployed.turns.settled(started)
    await act(sandbox, "pay", invoice)
    await act(sandbox, "crm", f"ticket/{record}")
    lines, summary = await by_command(deployed, started, "--fix", code=1)
    code, table, _ = await deployed.turnsaga("verify", "--turn", started.ref.turn)

    assert [(line["tool"], line["identity"], line["state"]) for line in lines] == [
        ("charge_card", invoice, "committed"),
        ("create_record", f"ticket/{record}", "committed"),
        ("update_record", f"ticket/{record}", "committed"),
    ]
    assert {line["verdict"] for line in lines} == {"differs"}
    assert {line["vendor"] for line in lines} == {"found, and undone or removed since"}
    assert all("the ledger keeps what it says" in line["remedy"] for line in lines)
    assert (summary["differ"], summary["fixed"]) == (3, 0)
    assert await deployed.turns.view(started) == before, "--fix decides nothing that only a person can"
    assert (code, table.count("differs")) == (1, 3)


async def test_edit_by_somebody_else_is_no_drift(deployed: Deployed, sandbox: SandboxProcess) -> None:
    record = new("VE")
    started = await deployed.turns.start(reply(create(record)))
    await deployed.turns.settled(started)
    await act(sandbox, "crm", f"ticket/{record}", "edit", fields={"title": "theirs"})
    _, summary = await compared(deployed, started)

    assert summary["agree"] == 1


async def test_what_the_ledger_calls_failed_and_is_there_differs(
    deployed: Deployed, sandbox: SandboxProcess
) -> None:
    invoice = new("VF")
    await sandbox.knobs(
        "pay",
        fail={"status": 400, "times": 1, "applied": True},
        only={"op": "apply", "identity": invoice},
    )
    started = await deployed.turns.start(reply(charge(invoice)))
    view = await deployed.turns.settled(started)
    await sandbox.clear()
    [line], summary = await compared(deployed, started)

    assert [effect.state for effect in view.effects] == [State.FAILED]
    assert (line["state"], line["verdict"], line["vendor"]) == ("failed", "differs", "stands")
    assert "undo it there by hand" in line["remedy"]
    assert summary["differ"] == 1
    await act(sandbox, "pay", invoice)
    _, after = await compared(deployed, started)
    assert after["agree"] == 1, "somebody has undone it there"


async def test_released_effect_was_never_there(deployed: Deployed) -> None:
    invoice = new("VL")
    started = await deployed.turns.start(
        reply(charge(invoice)), THINKING, policies={"charge_card": "turn_end"}
    )
    await deployed.turns.reaches(started, "prepared", "charge_card")
    [held], before = await compared(deployed, started)
    await deployed.turns.turns.abort(WHO, started.ref.turn)
    await deployed.turns.settled(started)
    lines, after = await compared(deployed, started)

    assert (held["state"], held["verdict"], before["open"]) == ("prepared", "open", 1)
    assert (lines, after["agree"]) == ([], 1)


async def test_what_can_t_be_asked_is_counted_as_such(deployed: Deployed) -> None:
    started = await deployed.turns.start(
        reply(call("post_message", channel="ops", text=new("VM"))), policies={"post_message": "immediate!"}
    )
    await deployed.turns.settled(started)
    lines, summary = await compared(deployed, started)

    assert lines == []
    assert (summary["checked"], summary["cant_be_asked"], summary["agree"]) == (1, 1, 0)


async def test_silent_vendor_is_neither_agreement_nor_drift(
    deployed: Deployed, sandbox: SandboxProcess
) -> None:
    invoice, record = new("VS"), new("VS")
    started = await deployed.turns.start(reply(charge(invoice), create(record)))
    await deployed.turns.settled(started)
    nowhere = f"http://127.0.0.1:{free_port()}/pay"
    [line], summary = await by_command(deployed, started, code=3, TURNSAGA_PAY_URL=nowhere)
    await act(sandbox, "crm", f"ticket/{record}")
    both, _ = await by_command(deployed, started, code=1, TURNSAGA_PAY_URL=nowhere)

    assert (line["tool"], line["verdict"]) == ("charge_card", "unreachable")
    assert line["vendor"].startswith("not reached: ")
    assert (summary["agree"], summary["unreachable"]) == (1, 1)
    assert {each["verdict"] for each in both} == {"unreachable", "differs"}


async def test_limit_since_and_owners_bound_what_is_compared(deployed: Deployed) -> None:
    started = await deployed.turns.start(reply(create(new("VB")), create(new("VB"))))
    await deployed.turns.settled(started)
    later = datetime.now(UTC) + timedelta(seconds=1)
    _, one = await by_command(deployed, started, "--limit", "1", "--since", "2020-01-01")
    _, two = await compared(deployed, started, limit=2)
    _, none = await compared(deployed, started, since=later)
    _, foreign = await compared(deployed, started, owners=Owners("other"))

    assert (one["checked"], one["more"]) == (1, True)
    assert (two["checked"], two["more"]) == (2, False)
    assert (none["checked"], foreign["checked"]) == (0, 0)


async def test_what_can_t_be_run_ends_with_2(deployed: Deployed, tmp_path: Path) -> None:
    ended = [
        await deployed.turnsaga("verify", "--since", "yesterday"),
        await deployed.turnsaga("verify", "--app", "nowhere:app"),
        await deployed.turnsaga("verify", TURNSAGA_DATABASE=f"sqlite:///{tmp_path / 'no.db'}"),
    ]

    assert [code for code, _, _ in ended] == [2, 2, 2]
    assert all(out == "" for _, out, _ in ended)


# --fix


@dataclass(frozen=True)
class Doubtful:
    """A deployment whose look-ups are given up after a second, without a sweeper."""

    deployed: Deployed
    turns: Turns


@pytest.fixture
async def doubtful(
    here: Deployed, client: Client, sandbox: SandboxProcess, tmp_path: Path
) -> AsyncIterator[Doubtful]:
    async with deployment_tools(sandbox.vendor) as tools:
        hasty = [
            replace(
                tool,
                limits=replace(
                    tool.limits, resolve=timedelta(seconds=1), landing_window=timedelta(minutes=5)
                ),
            )
            if isinstance(tool, EffectTool)
            else tool
            for tool in tools
        ]
        async with turns_over(client, tmp_path, Tools(hasty)) as turns:
            env = {
                **here.env,
                "TURNSAGA_DATABASE": turns.store.where,
                "TURNSAGA_TASK_QUEUE": turns.task_queue,
            }
            deployment = replace(here.deployment, database=turns.store.where, task_queue=turns.task_queue)
            yield Doubtful(Deployed(turns, deployment, env), turns)
    await sandbox.clear()


async def lost(doubtful: Doubtful, sandbox: SandboxProcess, record: str, *after: Any) -> Started:
    """Return a turn whose creation of a record was applied, lost, not found, and handed over."""
    identity = f"ticket/{record}"
    await sandbox.knobs("crm", drop_response=1, read_lag_ms=3_600_000, only={"identity": identity})
    started = await doubtful.turns.start(reply(create(record)), *after)

    async def handed_over() -> bool:
        [effect] = (await doubtful.turns.view(started)).effects or [None]
        return effect is not None and effect.state is State.UNKNOWN and effect.needs_attention

    await eventually(handed_over, within=30, what="an effect that is handed over")
    return started


async def test_fix_writes_down_what_the_vendor_knows(doubtful: Doubtful, sandbox: SandboxProcess) -> None:
    started = await lost(doubtful, sandbox, new("VX"))
    await doubtful.turns.settled(started)
    [hidden], _ = await compared(doubtful.deployed, started, fix=True)
    await sandbox.clear()
    [seen], before = await compared(doubtful.deployed, started)
    unchanged = (await doubtful.turns.view(started)).effects[0].state
    [fixed], after = await by_command(doubtful.deployed, started, "--fix")
    _, agreed = await compared(doubtful.deployed, started)

    assert (hidden["vendor"], hidden["fixed"]) == ("not found yet", ""), "it may still land"
    assert (seen["verdict"], seen["vendor"], seen["fixed"]) == ("open", "stands", "")
    assert (before["open"], before["fixed"], unchanged) == (1, 0, State.UNKNOWN)
    assert (fixed["fixed"], after["fixed"]) == ("the ledger says committed now", 1)
    assert (agreed["agree"], agreed["open"]) == (1, 0)
    await doubtful.turns.must_agree(Truth.model_validate(await sandbox.truth()), started)


async def test_fix_has_a_stopped_turn_settled_by_a_recovery(
    doubtful: Doubtful, sandbox: SandboxProcess
) -> None:
    started = await lost(doubtful, sandbox, new("VX"), THINKING)
    await doubtful.turns.turns.abort(WHO, started.ref.turn)
    await doubtful.turns.settled(started)
    await sandbox.clear()
    [fixed], _ = await compared(doubtful.deployed, started, fix=True)
    await doubtful.turns.reaches(started, "compensated", "create_record", within=30)
    _, agreed = await compared(doubtful.deployed, started)

    assert fixed["fixed"] == "the ledger says committed now; a recovery settles its turn"
    assert agreed["agree"] == 1
    await doubtful.turns.must_agree(Truth.model_validate(await sandbox.truth()), started)


async def test_fix_without_temporal_leaves_the_rest_to_the_sweeper(
    doubtful: Doubtful, sandbox: SandboxProcess
) -> None:
    started = await lost(doubtful, sandbox, new("VX"), THINKING)
    await doubtful.turns.turns.abort(WHO, started.ref.turn)
    await doubtful.turns.settled(started)
    await sandbox.clear()
    away = f"127.0.0.1:{free_port()}"
    [fixed], _ = await by_command(doubtful.deployed, started, "--fix", TEMPORAL_ADDRESS=away)
    [report] = await doubtful.deployed.lines("sweep")
    await doubtful.turns.reaches(started, "compensated", "create_record", within=30)

    assert "the sweeper settles its turn" in fixed["fixed"]
    assert report["recovered"] == 1
