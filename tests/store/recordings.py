"""Ledgers as earlier versions wrote them: rows of every table, and what was read of them then."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from pydantic_core import to_jsonable_python
from sqlalchemy import Connection, Engine, MetaData, create_engine, insert, select
from sqlalchemy.engine import make_url

from tests.store.ledgers import DRIVERS
from turnsaga.models import Principal, StepRef
from turnsaga.store import SqlStore

RECORDED = Path(__file__).parent / "recorded"
VERSION_TABLE = "alembic_version"
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Recording:
    """A ledger at a revision; ``at`` is the instant at which it was left, ``seen`` what was read of it."""

    revision: str
    at: datetime
    rows: Rows
    seen: Any

    @classmethod
    def of(cls, revision: str) -> "Recording":
        """Read the recording of a revision."""
        found = json.loads((RECORDED / f"{revision}.json").read_text(encoding="utf-8"))
        return cls(revision, datetime.fromisoformat(found["at"]), found["rows"], found["seen"])

    def write(self) -> Path:
        """Write it where ``of`` reads it: a row a line, so that it can be read and compared."""
        path = RECORDED / f"{self.revision}.json"
        told = {"at": self.at.isoformat(), "rows": self.rows, "seen": self.seen}
        path.write_text(_lines(told, depth=3) + "\n", encoding="utf-8")
        return path


def recorded_revisions() -> list[str]:
    """Return the revisions of which there is a recording, oldest first."""
    return sorted(path.stem for path in RECORDED.glob("*.json"))


def engine_of(url: str) -> Engine:
    """Return an engine that knows nothing of the ledger."""
    given = make_url(url)
    return create_engine(given.set(drivername=DRIVERS[given.get_backend_name()]))


def read_rows(connection: Connection) -> Rows:
    """Return every row of every table, by whatever schema the database has."""
    return {
        table.name: [
            dict(row) for row in connection.execute(select(table).order_by(*table.primary_key)).mappings()
        ]
        for table in _tables(connection).sorted_tables
        if table.name != VERSION_TABLE
    }


def load_rows(connection: Connection, rows: Rows) -> None:
    """Put the rows into the tables of an empty ledger of their revision."""
    tables = _tables(connection)
    for table in tables.sorted_tables:
        if rows.get(table.name):
            connection.execute(insert(table), [dict(row) for row in rows[table.name]])


async def what_is_seen(store: SqlStore, rows: Rows) -> Any:
    """Return what people, models and the sweeper read of the turns in these rows."""
    turns = {row["turn"]: Principal(tenant=row["tenant"], user=row["user"]) for row in rows["turns"]}
    seen: dict[str, Any] = {
        "cards": await store.tool_cards(),
        "engine": await store.engine(),
        "sweep": await store.turns_to_sweep(before=datetime(9000, 1, 1, tzinfo=UTC), limit=1000),
        "turns": {},
        "accounts": {},
    }
    for turn, who in turns.items():
        page = await store.event_page(who, turn, after=0)
        seen["turns"][turn] = {
            "view": await store.turn_view(who, turn),
            "events": [f"{event.number} {event.kind}" for event in page.events],
            "last": page.last,
            "ended": page.ended,
            "told": await _told(store, StepRef(tenant=who.tenant, turn=turn, step=2)),
        }
    for who in sorted(set(turns.values()), key=str):
        seen["accounts"][f"{who.tenant}/{who.user}"] = {
            "all": await store.account_effects(who, outstanding=False),
            "outstanding": await store.account_effects(who, outstanding=True),
        }
    return to_jsonable_python(seen)


async def _told(store: SqlStore, ref: StepRef) -> dict[str, Any]:
    """Return what the model is told in this step."""
    context = await store.step_context(ref)
    return {name: getattr(context, name) for name in ("message", "model", "policies", "history", "notices")}


def _tables(connection: Connection) -> MetaData:
    tables = MetaData()
    tables.reflect(connection)
    return tables


def _lines(value: object, *, depth: int, indent: int = 0) -> str:
    if depth == 0 or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    inner = {"depth": depth - 1, "indent": indent + 1}
    if isinstance(value, dict):
        named = cast("dict[str, object]", value)
        parts = [f"{json.dumps(name)}: {_lines(part, **inner)}" for name, part in named.items()]
    else:
        parts = [_lines(part, **inner) for part in cast("list[object]", value)]
    before, after = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * indent
    return before + ",".join(f"{margin} {part}" for part in parts) + margin + after
