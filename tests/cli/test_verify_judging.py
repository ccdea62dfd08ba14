"""What a vendor's word proves, over all pairs; and the pages of a ledger on both databases."""

from pathlib import Path

import pytest

from tests.databases import Postgres
from tests.store.ledgers import ADA, BOB, Clock, Ledger
from turnsaga.cli._questions import Owners
from turnsaga.cli._reading import LedgerReader
from turnsaga.cli._verify import Said, Scope, Summary, Verdict, _paging, judge
from turnsaga.cli._verify._judging import OPEN, remedy
from turnsaga.ledger import State
from turnsaga.store import SqlStore

APPLIED = {State.COMMITTED, State.STANDING, State.COMPENSATION_FAILED}
NEVER = {State.FAILED, State.RELEASED}
IS_THERE = {Said.STANDS, Said.APPLIED}
ISN_T = {Said.GONE, Said.MISSING}
PROVES_NOTHING = {Said.NOTHING, Said.TOO_EARLY}


def expected(state: State, said: Said) -> Verdict:
    if said is Said.SILENT:
        return Verdict.UNREACHABLE
    if state in OPEN:
        return Verdict.OPEN
    if said in PROVES_NOTHING:
        return Verdict.CANT_BE_ASKED
    if said is Said.RUNNING:
        return Verdict.DIFFERS if state in NEVER else Verdict.CANT_BE_ASKED
    if state is State.COMPENSATED and said is Said.APPLIED:
        return Verdict.CANT_BE_ASKED
    return Verdict.AGREES if (state in APPLIED) == (said in IS_THERE) else Verdict.DIFFERS


@pytest.mark.parametrize("said", Said)
@pytest.mark.parametrize("state", State)
def test_every_state_and_every_word(state: State, said: Said) -> None:
    assert IS_THERE | ISN_T | PROVES_NOTHING | {Said.RUNNING, Said.SILENT} == set(Said)
    assert APPLIED | NEVER | OPEN | {State.COMPENSATED} == set(State)
    verdict = judge(state, said)

    assert verdict is expected(state, said)
    assert bool(remedy(state, verdict, "pay")) is (verdict not in {Verdict.AGREES, Verdict.CANT_BE_ASKED})


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        (Summary(checked=3, agree=1, cant_be_asked=1, open=1), 0),
        (Summary(checked=2, differ=1, unreachable=1), 1),
        (Summary(checked=2, agree=1, unreachable=1), 3),
    ],
)
def test_exit_code(summary: Summary, code: int) -> None:
    assert summary.exit_code == code


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


async def test_pages_are_whole_and_oldest_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_paging, "_PAGE", 2)
    clock = Clock()
    store = SqlStore(url, clock=clock)
    await store.open()
    ledger = Ledger(store, clock)
    made: list[str] = []
    for who in (ADA, BOB):
        turn = await ledger.turn(who=who, calls=3)
        # Two at one instant: those are told apart by their names.
        same = sorted([(await ledger.commit(turn, index)).effect for index in range(2)])
        clock.pass_(1)
        made += [*same, (await ledger.commit(turn, 2)).effect]
        clock.pass_(1)
    reader = LedgerReader(url)

    async def found(scope: Scope) -> list[str]:
        return [ref.effect async for page in _paging.pages(reader, scope) for ref in page]

    everything = await found(Scope())
    limited = await found(Scope(limit=3))
    of_bob = await found(Scope(Owners("acme", BOB.user)))
    late = await found(Scope(since=clock()))
    await store.close()

    assert everything == made
    assert limited == made[:4], "one more, which says that there are more"
    assert of_bob == made[3:]
    assert late == []
