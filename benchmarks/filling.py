"""Fills a ledger with turns of the past, by copies that the database itself makes of a real one."""

from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, String, cast, insert, literal, select, true

from turnsaga.store import SqlStore, schema

__all__ = ["fill"]

_EFFECTS: Final = 3
_AT_ONCE: Final = 10_000  # turns; a statement on the ledger has its bound


async def fill(store: SqlStore, template: str, *, first: int, effects: int) -> int:
    """Copy an ended turn of three effects until there are so many more; return the next copy's number.

    The copies belong to a thousand other users of its tenant, each to a conversation of its own.
    """
    last = first + effects // _EFFECTS
    for begin in range(first, last, _AT_ONCE):
        end = min(begin + _AT_ONCE, last)
        await store._database.write(_copy, template, begin, end)  # noqa: SLF001  # a measurement looks inside
    return last


def _copy(connection: Connection, template: str, first: int, last: int) -> None:
    number = select(literal(first).label("n")).cte("numbers", recursive=True)
    number = number.union_all(select(number.c.n + 1).where(number.c.n < last - 1))
    name = literal("past-").concat(cast(number.c.n, String))
    owner: dict[str, ColumnElement[Any]] = {
        "user": literal("user-").concat(cast(number.c.n % 1000, String)),
        "conversation": name,
    }
    turns, effects, events = schema.turns, schema.effects, schema.turn_events
    effect = name.concat("-").concat(cast(effects.c.seq, String))
    talk = select(turns.c.conversation).where(turns.c.turn == template).scalar_subquery()
    own = {
        schema.conversations: (owner, schema.conversations.c.conversation == talk),
        turns: ({**owner, "turn": name}, turns.c.turn == template),
        effects: (
            {**owner, "turn": name, "effect": effect, "key": effect},
            effects.c.turn == template,
        ),
        events: ({"turn": name}, events.c.turn == template),
    }
    for table, (changed, which) in own.items():
        names = [column.name for column in table.columns]
        copied = (changed.get(one, table.c[one]) for one in names)
        copies = select(*copied).select_from(table.join(number, true())).where(which)
        connection.execute(insert(table).from_select(names, copies))
