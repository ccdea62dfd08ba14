"""Transactions that collide, hang or wait: run again until they are applied once, or refused in time."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from tests.databases import Postgres
from tests.stack import eventually
from tests.store.ledgers import ADA, Clock, Ledger
from tests.store.writer import TEXTS
from turnsaga.errors import StoreBusy
from turnsaga.store import SqlStore, _engine
from turnsaga.store._engine import Database

REPOSITORY = Path(__file__).parents[2]
WRITERS = 16


@asynccontextmanager
async def counters(
    url: str, *, isolation: str | None = None, connections: int = 4
) -> AsyncIterator[Database]:
    """A database with two counters, ``a`` and ``b``."""
    database = Database(url, connections=connections)
    if isolation is not None:
        database.engine = database.engine.execution_options(isolation_level=isolation)

    def create(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE counters (name text PRIMARY KEY, value integer NOT NULL)"))
        connection.execute(text("INSERT INTO counters VALUES ('a', 0), ('b', 0)"))

    await database.write(create)
    yield database
    await database.close()


def value(connection: Connection, name: str) -> int:
    found: int = connection.execute(
        text("SELECT value FROM counters WHERE name = :name"), {"name": name}
    ).scalar_one()
    return found


def put(connection: Connection, name: str, number: int) -> None:
    connection.execute(
        text("UPDATE counters SET value = :number WHERE name = :name"), {"name": name, "number": number}
    )


def add(connection: Connection, name: str) -> None:
    connection.execute(text("UPDATE counters SET value = value + 1 WHERE name = :name"), {"name": name})


class Meeting:
    """Has the first attempts of so many transactions meet in the middle, and counts all attempts."""

    def __init__(self, parties: int) -> None:
        self._barrier = threading.Barrier(parties, timeout=10)
        self._parties = parties
        self._lock = threading.Lock()
        self.attempts = 0

    def meet(self) -> None:
        with self._lock:
            self.attempts += 1
            first = self.attempts <= self._parties
        if first:
            self._barrier.wait()


async def test_serialization_failures_are_run_again_and_applied_once(postgres: Postgres) -> None:
    """Each reads what the others have read: but one are refused with SQLSTATE 40001."""
    async with counters(postgres.new_database(), isolation="SERIALIZABLE") as database:
        meeting = Meeting(4)

        def increment(connection: Connection) -> None:
            seen = value(connection, "a")
            meeting.meet()
            put(connection, "a", seen + 1)

        await asyncio.gather(*(database.write(increment) for _ in range(4)))
        counted = await database.read(value, "a")

    assert counted == 4
    assert meeting.attempts > 4, "some were refused"


async def test_deadlock_is_run_again_and_applied_once(postgres: Postgres) -> None:
    async with counters(postgres.new_database()) as database:
        meeting = Meeting(2)

        def crossing(first: str, second: str) -> Callable[[Connection], None]:
            def work(connection: Connection) -> None:
                add(connection, first)
                meeting.meet()
                add(connection, second)

            return work

        await asyncio.gather(database.write(crossing("a", "b")), database.write(crossing("b", "a")))
        counted = [await database.read(value, name) for name in ("a", "b")]

    assert counted == [2, 2]
    assert meeting.attempts == 3, "one was the deadlock's victim"


async def test_transaction_that_always_collides_is_given_up_with_what_to_do(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_engine, "_PAUSES", (0.01, 0.01))
    url = postgres.new_database()
    attempts: list[int] = []
    async with counters(url, isolation="REPEATABLE READ") as database:

        def overtaken(connection: Connection) -> None:
            attempts.append(value(connection, "a"))
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("UPDATE counters SET value = value + 1 WHERE name = 'a'")
            add(connection, "a")

        with pytest.raises(StoreBusy, match=r"could not serialize.*3 times.*ask again, which is safe"):
            await database.write(overtaken)
        counted = await database.read(value, "a")

    assert attempts == [0, 1, 2]
    assert counted == 3, "nothing of the refused transaction is left"


async def test_wait_for_a_lock_is_bounded_and_says_what_to_look_at(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_engine, "_PAUSES", (0.01,))
    url = make_url(postgres.new_database()).update_query_dict({"options": "-c lock_timeout=50"})
    store = SqlStore(url.render_as_string(hide_password=False))
    await store.open()
    ledger = Ledger(store, Clock())
    ref = await ledger.turn()
    with psycopg.connect(postgres.uri, dbname=url.database) as other:
        other.execute("SELECT * FROM turns FOR UPDATE")
        with pytest.raises(StoreBusy, match=r"lock timeout.*pg_locks"):
            await store.append_text(ledger.step(ref), "held up")
    taken = await store.append_text(ledger.step(ref), "free")
    kinds = await ledger.kinds(ref)
    await store.close()

    assert taken
    assert kinds.count("text_delta") == 1


async def test_connections_have_limits_unless_somebody_set_others(postgres: Postgres) -> None:
    url = make_url(postgres.new_database())
    own = url.update_query_dict({"options": "-c statement_timeout=7s"})

    def limits(connection: Connection) -> list[str]:
        names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        return [str(connection.exec_driver_sql(f"SHOW {name}").scalar_one()) for name in names]

    found: list[list[str]] = []
    for each in (url, own):
        database = Database(each.render_as_string(hide_password=False), connections=1)
        found.append(await database.read(limits))
        await database.close()

    assert found == [["5s", "30s", "1min"], ["5s", "7s", "1min"]]


async def test_wait_for_a_free_connection_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "_QUEUE_S", 0.2)
    database = Database(url, connections=1)
    held, free = threading.Event(), threading.Event()
    ran: list[str] = []

    def hang(_connection: Connection) -> None:
        held.set()
        assert free.wait(10)

    hanging = asyncio.create_task(database.write(hang))
    await eventually(held.is_set, what="the first transaction")
    loop = asyncio.get_running_loop()
    asked = loop.time()
    waiting = asyncio.create_task(database.write(lambda _connection: ran.append("too late")))
    await eventually(lambda: loop.time() - asked > 0.3, what="a wait that is too long")
    free.set()
    await hanging

    with pytest.raises(StoreBusy, match=r"none of 1 connections was free.*more connections"):
        await waiting
    await database.write(lambda _connection: ran.append("in time"))
    await database.close()
    assert ran == ["in time"]


async def test_sixteen_processes_get_contiguous_numbers_one_claim_and_one_fence(url: str) -> None:
    store = SqlStore(url)
    await store.open()
    ledger = Ledger(store, Clock())
    ref = await ledger.turn()
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, "-m", "tests.store.writer", url, ref.tenant, ref.turn)
    writers = [
        await asyncio.create_subprocess_exec(*words, cwd=REPOSITORY, stdin=pipe, stdout=pipe)
        for _ in range(WRITERS)
    ]
    for writer in writers:
        await _ready(writer)
    ends = await asyncio.gather(*(writer.communicate(b"go\n") for writer in writers))
    told = [json.loads(out.decode().splitlines()[-1]) for out, _ in ends]
    kinds = await ledger.kinds(ref)
    view = await store.turn_view(ADA, ref.turn)
    await store.close()

    assert [writer.returncode for writer in writers] == [0] * WRITERS
    assert kinds.count("text_delta") == sum(each["texts"] for each in told) >= TEXTS
    assert sum(each["first"] for each in told) == kinds.count("turn_aborting") == 1
    assert sum(each["sends"] for each in told) == kinds.count("tool_committing") == 1
    assert len(view.effects) == kinds.count("tool_prepared")
    assert not {"text_delta", "tool_prepared"} & set(kinds[kinds.index("turn_aborting") :])


async def _ready(writer: asyncio.subprocess.Process) -> None:
    assert writer.stdout is not None
    async with asyncio.timeout(60):
        while (line := await writer.stdout.readline()) != b"ready\n":
            assert line, "the writer ended before it was ready"
