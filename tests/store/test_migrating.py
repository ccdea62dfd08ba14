"""How a ledger is brought to a new revision: once, whole or not at all, and never backwards."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from tests.store.ledgers import ADA, Clock, Ledger
from tests.store.recordings import engine_of, read_rows
from turnsaga.errors import StoreUnusable
from turnsaga.store import SqlStore, migrations

REPOSITORY = Path(__file__).parents[2]
ADDS = "op.add_column('turns', sa.Column('mood', sa.Text()))"
COPIES = "with op.batch_alter_table('turns') as table: table.alter_column('model', type_=sa.Text())"
ORPHANS = text("UPDATE turns SET conversation = 'gone'")


def revision(folder: Path, *statements: str) -> Path:
    """Write a revision after the newest one, and return its folder."""
    lines = [
        '"""A later revision."""',
        "import os",
        "import sqlalchemy as sa",
        "from alembic import op",
        "revision = 'later'",
        f"down_revision = {migrations.HEAD!r}",
        "def upgrade() -> None:",
        *(f"    {statement}" for statement in statements),
    ]
    folder.mkdir(exist_ok=True)
    (folder / "later.py").write_text("\n".join(lines), encoding="utf-8")
    return folder


async def opened_by(count: int, *words: str) -> list[tuple[int | None, Any]]:
    """Open a ledger by so many processes at the same instant; return how each ended and what it told."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.store.opener", *words)
    processes = [
        await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=pipe)
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"ready\n"
    ends = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    return [
        (process.returncode, json.loads(out.splitlines()[-1]) if process.returncode == 0 else err.decode())
        for process, (out, err) in zip(processes, ends, strict=True)
    ]


async def left(url: str) -> Ledger:
    """Return a ledger of this version with a turn and two effects in it."""
    store = SqlStore(url, clock=Clock())
    await store.open()
    ledger = Ledger(store, Clock())
    ref = await ledger.turn(calls=2)
    await ledger.commit(ref, 0, resources=("r",))
    await ledger.claim(ref, 1)
    return ledger


def columns(url: str, table: str) -> set[str]:
    engine = engine_of(url)
    found = {str(column["name"]) for column in inspect(engine).get_columns(table)}
    engine.dispose()
    return found


def rows_of(url: str) -> dict[str, Sequence[Any]]:
    engine = engine_of(url)
    with engine.connect() as connection:
        found = dict(read_rows(connection))
    engine.dispose()
    return found


def later(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have this process be of the later version."""
    monkeypatch.setattr(migrations, "_VERSIONS", (*migrations._VERSIONS, folder))
    monkeypatch.setattr(
        migrations, "HEAD", ScriptDirectory.from_config(migrations._config()).get_current_head()
    )


async def test_ledgers_that_one_process_opens_at_the_same_instant_are_each_built_whole(
    tmp_path: Path,
) -> None:
    stores = [SqlStore(f"sqlite:///{tmp_path / f'{number}.db'}") for number in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    built = [await store.account_effects(ADA, outstanding=False) for store in stores]
    for store in stores:
        await store.close()

    assert built == [()] * 8


async def test_processes_that_open_an_empty_database_at_once_migrate_it_once(url: str) -> None:
    told = await opened_by(4, url)

    assert [code for code, _ in told] == [0] * 4
    assert sorted(len(each["upgraded"]) for _, each in told) == [0, 0, 0, 1]


@pytest.mark.parametrize("end", ["raise RuntimeError('torn')", "os._exit(9)"], ids=["raises", "dies"])
async def test_migration_that_is_interrupted_leaves_the_revision_before(
    url: str, tmp_path: Path, end: str
) -> None:
    ledger = await left(url)
    before = rows_of(url)
    await ledger.store.close()
    folder = revision(tmp_path / "more", ADDS, "op.execute(\"UPDATE turns SET mood = 'torn'\")", end)
    [(code, _)] = await opened_by(1, url, str(folder))
    after, names = rows_of(url), columns(url, "turns")
    again = SqlStore(url)
    await again.open()
    effects = await again.account_effects(ADA, outstanding=False)
    await again.close()
    revision(folder, ADDS)
    [(code_later, told)] = await opened_by(1, url, str(folder))

    assert code != 0
    assert after == before
    assert "mood" not in names
    assert len(effects) == 2
    assert (code_later, told["head"], told["upgraded"]) == (0, "later", ["head"])
    assert "mood" in columns(url, "turns")


async def test_table_that_others_refer_to_can_be_altered_with_rows_in_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite drops it for a copy; with foreign keys enforced its effects would keep that from happening."""
    ledger = await left(url)
    await ledger.store.close()
    before = rows_of(url)
    later(monkeypatch, revision(tmp_path / "more", COPIES))
    store = SqlStore(url, clock=Clock())
    await store.open()
    # Foreign keys are enforced again: a turn of a conversation that isn't there is refused.
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        await store._database.write(
            lambda connection: connection.execute(text("UPDATE turns SET conversation = 'gone'"))
        )
    await Ledger(store, Clock()).turn(conversation="goes on")
    await store.close()

    after = rows_of(url)
    assert {name: after[name] for name in ("effects", "resources", "tools")} == {
        name: before[name] for name in ("effects", "resources", "tools")
    }
    assert before["turns"][0] in after["turns"]


async def test_migration_that_loses_rows_that_others_refer_to_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite, where they aren't enforced meanwhile; Postgres refuses the statement itself."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = await left(url)
    await ledger.store.close()
    before = rows_of(url)
    with monkeypatch.context() as patched:
        later(patched, revision(tmp_path / "more", "op.execute('DELETE FROM turns')"))
        store = SqlStore(url)

        with pytest.raises(StoreUnusable, match=r"rows of '\w+' refer to rows of 'turns' that it has lost"):
            await store.open()

        await store.close()
    assert rows_of(url) == before


async def test_ledger_of_a_newer_version_is_refused_with_what_to_do(url: str, tmp_path: Path) -> None:
    [(_, told)] = await opened_by(1, url, str(revision(tmp_path / "more", ADDS)))
    store = SqlStore(url)

    with pytest.raises(StoreUnusable, match=rf"'later'.*up to '{migrations.HEAD}'; run the newer version"):
        await store.open()

    await store.close()
    assert told["head"] == "later"
    assert "mood" in columns(url, "turns")


async def test_folder_of_revisions_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    folder = revision(tmp_path / "100% %(here)s odd", ADDS)
    later(monkeypatch, folder)
    store = SqlStore(url)
    await store.open()
    await store.close()

    assert "mood" in columns(url, "turns")
