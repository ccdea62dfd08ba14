"""What Postgres knows of the ledger's tables, until its own autovacuum has looked at them.

Of a new table it knows nothing, and then any index that begins with the tenant looks as good to it as the
one that leads to the row: each question reads all rows of its tenant, and what is prepared goes on like
that. By default autovacuum comes by within a minute, and has all plans made anew; until then, and where it
is off, a process that writes has tables that have grown looked at.
"""

from typing import Final

from sqlalchemy import Connection, text

from turnsaga.store import schema

__all__ = ["Growth", "analyze_grown"]

_FIRST: Final = 256
"""Transactions of a process, some sixteen turns, after which it looks for the first time."""

_FACTOR: Final = 4

_LOCK: Final = text("SELECT pg_try_advisory_xact_lock(hashtextextended('turnsaga/analyze', 0))")
# ``relpages`` is of the last time that anybody looked: zero, if nobody has.
_GROWN: Final = text(
    """
    SELECT oid::regclass::text FROM pg_class
    WHERE oid = ANY (SELECT to_regclass(name) FROM unnest(CAST(:names AS text[])) AS name)
      AND pg_relation_size(oid) > 2 * relpages::bigint * current_setting('block_size')::bigint
    """
)


class Growth:
    """Counts a process's transactions, and tells when tables may have grown: ever more rarely."""

    def __init__(self) -> None:
        self._counted = 0
        self._next = _FIRST

    def is_due(self) -> bool:
        """Count one; True if it is time to look."""
        self._counted += 1
        if self._counted < self._next:
            return False
        self._next *= _FACTOR
        return True


def analyze_grown(connection: Connection) -> tuple[str, ...]:
    """Have Postgres look at each table of the ledger that is more than twice as large as when it last did.

    Returns their names: none, if somebody else is at it. Whose role may not look at a table is told so by a
    warning of the server's, and that table is left out.
    """
    if not connection.scalar(_LOCK):
        return ()
    names = [table.name for table in schema.metadata.sorted_tables]
    grown = tuple(connection.scalars(_GROWN, {"names": names}))
    if grown:
        # Names that the server itself has quoted.
        connection.execute(text(f"ANALYZE {', '.join(grown)}"))
    return grown
