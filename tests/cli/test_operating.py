"""Turns and effects as an operator sees them, across all tenants and users."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Deployed
from tests.databases import Postgres
from tests.stack import WHO, SandboxProcess, call, eventually, free_port, reply, say
from tests.store.ledgers import ADA, BOB, EVE, Clock, Ledger
from turnsaga.cli._questions import Owners, effects, turns
from turnsaga.cli._reading import LedgerReader
from turnsaga.ledger import State, TurnState
from turnsaga.models import Principal, TurnRef
from turnsaga.store import EngineName, SqlStore, Started

_ids = itertools.count(1)
THINKING = say(*["thinking "] * 400, delay_ms=50)


async def begun(deployed: Deployed) -> Started:
    """Return a turn that has charged and goes on thinking."""
    charge = call(
        "charge_card", customer="cus_1", amount="10.00", currency="EUR", invoice=f"CLI-{next(_ids)}"
    )
    started = await deployed.turns.start(reply(charge), THINKING)
    await deployed.turns.reaches(started, "committed", "charge_card")
    return started


async def test_turn_is_listed_shown_and_aborted(deployed: Deployed) -> None:
    started = await begun(deployed)
    turn = started.ref.turn
    listed = await deployed.lines("turns", "list", "--state", "running", "--tenant", "acme")
    [stopped] = await deployed.lines("turns", "abort", turn, "--reason", "seen by ops")
    await deployed.turns.settled(started)
    [again] = await deployed.lines("turns", "abort", turn)
    [shown] = await deployed.lines("turns", "show", turn)
    [line] = [line for line in listed if line["turn"] == turn]

    assert (line["tenant"], line["user"], line["state"], line["effects"]) == ("acme", "ada", "running", 1)
    assert stopped == {"turn": turn, "state": "aborting", "first": True}
    assert again == {"turn": turn, "state": "aborted", "first": False}
    assert (shown["state"], shown["reason"]) == ("aborted", "seen by ops")
    assert [effect["state"] for effect in shown["effects"]] == ["compensated"]


async def test_abort_says_that_an_operator_did_it_and_not_the_owner(deployed: Deployed) -> None:
    started = await begun(deployed)
    await deployed.lines("turns", "abort", started.ref.turn, LOGNAME="grace")
    await deployed.turns.settled(started)

    def fenced_by(connection: Any) -> str:
        found: str = connection.exec_driver_sql(
            f"SELECT fence_by FROM turns WHERE turn = '{started.ref.turn}'"
        ).scalar_one()
        return found

    assert await LedgerReader(deployed.turns.store.where).ask(fenced_by) == "operator grace"


async def test_abort_holds_while_temporal_is_away(deployed: Deployed) -> None:
    started = await begun(deployed)
    code, _, err = await deployed.turnsaga(
        "turns", "abort", started.ref.turn, TEMPORAL_ADDRESS=f"127.0.0.1:{free_port()}"
    )
    state = (await deployed.turns.view(started)).state
    await deployed.turns.settled(started)

    assert code == 1
    assert "is fenced all the same" in err
    assert len(err.splitlines()) == 1
    assert state in {TurnState.ABORTING, TurnState.ABORTED}


async def test_effect_is_listed_and_shown(deployed: Deployed) -> None:
    started = await begun(deployed)
    [line] = await deployed.lines("effects", "list", "--turn", started.ref.turn)
    [shown] = await deployed.lines("effects", "show", line["effect"])
    none = await deployed.lines("effects", "list", "--turn", started.ref.turn, "--state", "standing")
    await deployed.turns.turns.abort(WHO, started.ref.turn)
    await deployed.turns.settled(started)

    assert (line["tool"], line["state"], line["needs_attention"]) == ("charge_card", "committed", False)
    assert (shown["effect"], shown["identity"]) == (line["effect"], line["identity"])
    assert shown["key"].startswith("ts")
    assert none == []


async def test_people_get_tables(deployed: Deployed) -> None:
    started = await begun(deployed)
    tables = [
        await deployed.turnsaga(*words)
        for words in (
            ("turns", "list"),
            ("turns", "show", started.ref.turn),
            ("effects", "list"),
            ("effects", "list", "--tenant", "nobody"),
        )
    ]
    await deployed.turns.turns.abort(WHO, started.ref.turn)
    await deployed.turns.settled(started)

    assert [code for code, _, _ in tables] == [0] * 4
    assert all(started.ref.turn in out for _, out, _ in tables[:3])
    assert "charge 10.00 EUR" in tables[1][1]
    assert tables[3][1] == "There are no such effects.\n"


@pytest.mark.parametrize("words", [("turns", "show"), ("turns", "abort"), ("effects", "show")])
async def test_another_tenant_s_is_not_found_under_a_filter(
    deployed: Deployed, words: tuple[str, str]
) -> None:
    started = await begun(deployed)
    [effect] = (await deployed.turns.view(started)).effects
    name = started.ref.turn if words[0] == "turns" else effect.effect
    code, out, err = await deployed.turnsaga(*words, name, "--tenant", "other")
    state = (await deployed.turns.view(started)).state
    await deployed.turns.turns.abort(WHO, started.ref.turn)
    await deployed.turns.settled(started)

    assert (code, out) == (1, "")
    assert err == f"turnsaga: there is no {words[0].rstrip('s')} {name!r}\n"
    assert state is TurnState.RUNNING


async def test_sweep_looks_once_and_says_what_it_did(deployed: Deployed) -> None:
    started = await begun(deployed)
    await deployed.turns.handle(started).terminate("an operator")

    async def recovered() -> bool:
        [report] = await deployed.lines("sweep")
        return bool(report["recovered"])

    # Another sweep may have found it first: then it settles all the same.
    async def settled() -> bool:
        return await recovered() or (await deployed.turns.view(started)).settlement is not None

    await eventually(settled, within=30, what="a sweep that recovers")
    view = await deployed.turns.settled(started)

    assert view.state is TurnState.ABORTED


async def test_sweep_stops_at_a_temporal_that_isn_t_the_ledger_s(deployed: Deployed, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'foreign.db'}"
    store = SqlStore(url)
    await store.open()
    await store.set_engine(EngineName("another-cluster", "default"))
    code, _, err = await deployed.turnsaga("sweep", TURNSAGA_DATABASE=url)
    known = await store.engine()
    await store.close()

    assert code == 1
    assert "belongs to Temporal 'another-cluster'" in err
    assert known == EngineName("another-cluster", "default")


async def test_ledger_that_isn_t_there_is_not_made(deployed: Deployed, tmp_path: Path) -> None:
    missing = tmp_path / "no.db"
    code, _, err = await deployed.turnsaga("turns", "list", TURNSAGA_DATABASE=f"sqlite:///{missing}")

    assert code == 1
    assert "there is no such file" in err
    assert not missing.exists()


async def test_ledger_of_another_version_is_left_alone(deployed: Deployed, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'newer.db'}"
    store = SqlStore(url)
    await store.open()
    await store._database.write(
        lambda connection: connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    )
    await store.close()
    code, _, err = await deployed.turnsaga("turns", "list", TURNSAGA_DATABASE=url)

    assert code == 1
    assert "its schema is at 9999" in err
    assert "see turnsaga doctor" in err


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


async def test_lists_hold_for_both_databases(url: str) -> None:
    clock = Clock()
    store = SqlStore(url, clock=clock)
    await store.open()
    ledger = Ledger(store, clock)
    made: dict[Principal, TurnRef] = {}
    for who in (ADA, BOB, EVE):
        made[who] = await ledger.turn(who=who)
        clock.pass_(1)
    kept = await ledger.commit(made[ADA])
    await ledger.claim(made[BOB])
    await ledger.fence(made[BOB])
    reader = LedgerReader(url)

    async def names(owners: Owners, *states: TurnState, limit: int = 50) -> list[str]:
        return [line.turn for line in await reader.ask(turns, owners, states=states, limit=limit)]

    async def found(**given: Any) -> list[tuple[str, str]]:
        asked: Mapping[str, Any] = {"states": (), "turn": None, "attention": False, "limit": 50, **given}
        lines = await reader.ask(effects, Owners(), **asked)
        return [(line.turn, line.state.value) for line in lines]

    everyone = await names(Owners())
    latest = await names(Owners(), limit=1)
    acme = await names(Owners("acme"))
    ada = await names(Owners("acme", "ada"))
    aborting = await names(Owners(), TurnState.ABORTING)
    all_effects = await found()
    committed = await found(states=(State.COMMITTED,))
    of_bob = await found(turn=made[BOB].turn)
    view = await store.effect_view(ADA, kept.effect)
    await store.close()

    assert everyone == [made[who].turn for who in (EVE, BOB, ADA)]
    assert latest == [made[EVE].turn]
    assert acme == [made[who].turn for who in (BOB, ADA)]
    assert ada == [made[ADA].turn]
    assert aborting == [made[BOB].turn]
    assert sorted(all_effects) == sorted([(made[ADA].turn, "committed"), (made[BOB].turn, "committing")])
    assert committed == [(made[ADA].turn, "committed")]
    assert of_bob == [(made[BOB].turn, "committing")]
    assert not view.needs_attention


async def test_attention_is_what_the_effect_s_own_view_says(url: str) -> None:
    clock = Clock()
    store = SqlStore(url, clock=clock)
    await store.open()
    ledger = Ledger(store, clock)
    turn = await ledger.turn(calls=2)
    await ledger.commit(turn, 0)
    claim = await ledger.claim(turn, 1)
    assert claim.row is not None
    await store.begin_lookup(claim.row.ref)
    await store.hand_over(claim.row.ref, "nobody knows")
    reader = LedgerReader(url)
    given: Mapping[str, Any] = {"states": (), "turn": None, "limit": 9}
    lines = await reader.ask(effects, Owners(), attention=True, **given)
    every = await reader.ask(effects, Owners(), attention=False, **given)
    views = {line.effect: await store.effect_view(ADA, line.effect) for line in every}
    await store.close()

    assert [line.effect for line in lines] == [claim.row.effect]
    assert len(every) == 2
    assert {line.effect: line.needs_attention for line in every} == {
        effect: view.needs_attention for effect, view in views.items()
    }


async def test_operator_resolves_what_needs_a_person(deployed: Deployed, sandbox: SandboxProcess) -> None:
    name = f"CLI-{next(_ids)}"
    await sandbox.knobs("mail", drop_response=1)
    started = await deployed.turns.start(
        reply(call("send_invoice_email", to="ada@example.com", invoice=name, amount="10.00")),
        policies={"send_invoice_email": "immediate!"},
    )
    await deployed.turns.settled(started)
    await sandbox.clear()
    [line] = await deployed.lines("effects", "list", "--needs-attention", "--turn", started.ref.turn)
    effect = line["effect"]
    refused = [
        await deployed.turnsaga("effects", "resolve", effect, *words)
        for words in (
            ("--as", "stands", "--note", "x"),
            ("--as", "applied", "--note", " "),
            ("--as", "applied", "--note", "x", "--tenant", "other"),
            ("--as", "nonsense", "--note", "x"),
            ("--as", "applied"),
        )
    ]
    said = ("--as", "applied", "--note", "it is in the outbox")
    [resolved] = await deployed.lines("effects", "resolve", effect, *said, LOGNAME="grace")
    [again] = await deployed.lines("effects", "resolve", effect, *said)
    other = await deployed.turnsaga("effects", "resolve", effect, "--as", "not-applied", "--note", "x")
    table = await deployed.turnsaga("effects", "resolve", effect, *said)
    left = await deployed.lines("effects", "list", "--needs-attention", "--turn", started.ref.turn)

    def recorded(connection: Any) -> list[tuple[Any, ...]]:
        found = connection.exec_driver_sql(
            f"SELECT state, word, note, \"by\", via FROM resolutions WHERE effect = '{effect}'"
        )
        return [tuple(row) for row in found]

    assert line["needs_attention"]
    assert [code for code, _, _ in refused] == [1, 1, 1, 2, 2]
    assert "'unknown'" in refused[0][2]
    assert "there is no effect" in refused[2][2]
    assert (resolved["state"], resolved["needs_attention"]) == ("committed", False)
    assert again == resolved
    assert other[0] == 1
    assert "resolved as 'applied' before" in other[2]
    assert table[0] == 0
    assert "committed" in table[1]
    assert left == []
    assert await LedgerReader(deployed.turns.store.where).ask(recorded) == [
        ("unknown", "applied", "it is in the outbox", "operator grace", "cli")
    ]


async def test_reader_writes_nothing(url: str) -> None:
    store = SqlStore(url)
    await store.open()
    reader = LedgerReader(url)

    def write(connection: Any) -> None:
        connection.exec_driver_sql("DELETE FROM tools")

    with pytest.raises(Exception, match=r"readonly|read-only"):
        await reader.ask(write)
    await store.close()
