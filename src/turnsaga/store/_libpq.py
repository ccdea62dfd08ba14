"""Prepared statements on Postgres by libpq itself: fewer round trips, and little Python in each.

A transaction's BEGIN travels with its first statement, and its COMMIT with the last ones, whose answers
nobody waits for. In between, what is asked before anybody looks at an answer travels together, and a
statement that is run by itself is one call into C. The connection stays psycopg's: whatever else is run
on it runs in the same transaction.
"""

import select
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from psycopg import Connection, OperationalError
from psycopg.errors import Error, error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import BigInteger, Boolean, Dialect, Integer
from sqlalchemy.dialects import postgresql

from turnsaga.store._prepared import Answer, Column, microseconds
from turnsaga.store.schema import EPOCH, Instant

__all__ = ["PostgresDriver"]

_Sent: TypeAlias = bytes | None

_NOTIFY: Final = "SELECT pg_notify($1, $2)"
_DONE: Final = frozenset({ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK})


class _Known(NamedTuple):
    """A statement that this connection has been asked to run before."""

    name: bytes
    text: bytes
    readers: Sequence[Callable[[bytes], Any]]


class _Command(NamedTuple):
    """A statement to run under the name of a prepared one; without a name, as a text."""

    text: bytes
    name: bytes | None = None
    values: Sequence[_Sent] | None = None


class _Asked:
    """Statements that are sent together, and their answers once those are there."""

    __slots__ = ("answers", "commands", "readers")

    def __init__(self) -> None:
        self.commands: list[_Command] = []
        self.readers: list[Sequence[Callable[[bytes], Any]]] = []
        self.answers: Sequence[Answer] | None = None


_COMMIT: Final = _Command(b"COMMIT")
_WHICH: Final = _Command(b"SELECT pg_current_xact_id()::text", b"turnsaga_which", ())


class PostgresDriver:
    """One connection of psycopg's, used through its libpq."""

    dialect: Dialect = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]

    def __init__(self, connection: Connection[Any]) -> None:
        """Send nothing yet."""
        self._connection = connection
        self._pg = connection.pgconn
        self._known: dict[tuple[str, bool], _Known] = {}
        self._prepared: set[bytes] = set()
        self._waiting: list[_Command] = []
        self._asked = _Asked()
        self._writes = False
        self.transaction: str | None = None
        """By what the server can be asked about this transaction, if it was begun here and writes."""

    def begin(self, *, writes: bool) -> None:
        """Forget what was before; the next transaction is begun with its first statement."""
        self._waiting.clear()
        self._asked = _Asked()
        self._writes = writes
        self.transaction = None

    def run(self, sql: str, values: Sequence[object], columns: Sequence[Column]) -> Answer:
        """Return the rows as Python values, and how many rows were found or changed."""
        known = self._know(sql, columns)
        command = _command(known, values)
        if self._asked.commands or self._idle or command.name not in self._prepared:
            return self._asked_of(command, known)()
        result = self._pg.exec_prepared(known.name, command.values)  # type: ignore[arg-type]  # None is NULL
        if result.status not in _DONE:
            raise self._failure(result)
        return _rows(result, known.readers), result.command_tuples or 0

    def ask(self, sql: str, values: Sequence[object], columns: Sequence[Column]) -> Callable[[], Answer]:
        """Send it with the next statement whose answer is waited for, or with the COMMIT."""
        known = self._know(sql, columns)
        return self._asked_of(_command(known, values), known)

    def _asked_of(self, command: _Command, known: _Known) -> Callable[[], Answer]:
        asked = self._asked
        place = len(asked.commands)
        asked.commands.append(command)
        asked.readers.append(known.readers)

        def answer() -> Answer:
            if asked.answers is None:
                self.send_asked()
            if asked.answers is None:
                raise RuntimeError("an answer is looked at within its transaction, or not at all")
            return asked.answers[place]

        return answer

    def send_asked(self) -> None:
        """Send what was asked, and wait for the answers.

        Raises:
            psycopg.Error: one of them failed; the transaction has, then.
        """
        asked, self._asked = self._asked, _Asked()
        if asked.commands:
            results = self._exchange([*self._begin(), *asked.commands])[-len(asked.commands) :]
            asked.answers = [
                (_rows(result, readers), result.command_tuples or 0)
                for result, readers in zip(results, asked.readers, strict=True)
            ]

    def run_later(self, sql: str, values: Sequence[object]) -> None:
        """Run it together with the transaction's COMMIT."""
        self._waiting.append(_command(self._know(sql, ()), values))

    @property
    def waits(self) -> bool:
        """True while there is something to be sent."""
        return bool(self._waiting or self._asked.commands)

    def notify(self, channel: str, payload: str) -> None:
        """Tell those who listen, once the transaction is committed."""
        self.run_later(_NOTIFY, (channel, payload))

    def commit(self) -> None:
        """Send what has waited and COMMIT: once a statement fails, the server leaves out the rest.

        Raises:
            psycopg.Error: nothing is committed; or the connection is lost, and it isn't known.
        """
        if self._idle and not self.waits:
            return
        commands = [*self._begin(), *self._asked.commands, *self._waiting, _COMMIT]
        self._waiting.clear()
        self._asked = _Asked()
        if self._exchange(commands)[-1].command_status != b"COMMIT":
            raise OperationalError("the transaction had failed before its COMMIT")

    @property
    def _idle(self) -> bool:
        return self._pg.transaction_status == TransactionStatus.IDLE

    def _begin(self) -> list[_Command]:
        if not self._idle:
            return []
        level = self._connection.isolation_level
        mode = "" if level is None else f" ISOLATION LEVEL {level.name.replace('_', ' ')}"
        begin = _Command(f"BEGIN{mode}".encode())
        return [begin, _WHICH] if self._writes else [begin]

    def _know(self, sql: str, columns: Sequence[Column]) -> _Known:
        key = (sql, bool(columns))
        known = self._known.get(key)
        if known is None:
            name = f"turnsaga_{len(self._known)}".encode()
            known = self._known[key] = _Known(name, sql.encode(), [_reader(one.kind) for one in columns])
        return known

    def _exchange(self, commands: Sequence[_Command]) -> list[PGresult]:
        """Send commands in one go, and return the result of each."""
        pg = self._pg
        own: list[int] = []
        new: dict[bytes, int] = {}
        sent = 0
        try:
            pg.enter_pipeline_mode()
            for command in commands:
                if command.name is None:
                    pg.send_query_params(command.text, None)
                else:
                    if command.name not in self._prepared and command.name not in new:
                        pg.send_prepare(command.name, command.text)
                        new[command.name] = sent
                        sent += 1
                    pg.send_query_prepared(command.name, command.values)
                own.append(sent)
                sent += 1
            pg.pipeline_sync()
            results, failed = self._results()
            pg.exit_pipeline_mode()
        except BaseException:
            # What is still on its way would be taken for the answer to something else.
            pg.finish()
            raise
        # What is prepared stays so, whatever becomes of the transaction.
        self._prepared.update(name for name, place in new.items() if place < len(results))
        if failed is not None:
            raise failed
        mine = [results[place] for place in own]
        if _WHICH in commands:
            named = mine[commands.index(_WHICH)].get_value(0, 0)
            self.transaction = None if named is None else named.decode()
        return mine

    def _results(self) -> tuple[list[PGresult], Error | None]:
        """Read up to the answer to the sync: so it is noticed if the connection is lost by then.

        Raises:
            psycopg.OperationalError: it is lost.
        """
        results: list[PGresult] = []
        failed: Error | None = None
        while True:
            result = self._next()
            if result is None:
                if self._pg.status != ConnStatus.OK:
                    raise failed or OperationalError("the connection is lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                return results, failed
            elif result.status in _DONE:
                results.append(result)
            elif result.status != ExecStatus.PIPELINE_ABORTED:
                failed = failed or self._failure(result)

    def _failure(self, result: PGresult) -> Error:
        error = error_from_result(result)
        # It isn't the server that says so, but libpq: it has lost the server.
        return error if error.sqlstate is not None else OperationalError(str(error))

    def _next(self) -> PGresult | None:
        """Return the next result, or None between two; the interpreter is free for others meanwhile."""
        pg = self._pg
        while pg.flush():
            self._wait(select.POLLIN | select.POLLOUT)
        while pg.is_busy():
            self._wait(select.POLLIN)
        return pg.get_result()

    def _wait(self, what: int) -> None:
        # Not select(): it takes no socket whose number is above 1023, and a busy process has such.
        poll = select.poll()
        poll.register(self._pg.socket, what)
        poll.poll()
        self._pg.consume_input()


def _sent(value: object) -> _Sent:
    """Return a parameter in Postgres's text format."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, datetime):
        return b"%d" % microseconds(value)
    if isinstance(value, int):
        return b"%d" % value
    raise TypeError(f"no parameter of the ledger is a {type(value).__name__}")


def _instant(text: bytes) -> datetime:
    return EPOCH + timedelta(microseconds=int(text))


def _true(text: bytes) -> bool:
    return text == b"t"


def _reader(kind: object) -> Callable[[bytes], Any]:
    if isinstance(kind, Instant):
        return _instant
    if isinstance(kind, Boolean):
        return _true
    return int if isinstance(kind, Integer | BigInteger) else bytes.decode


def _command(known: _Known, values: Sequence[object]) -> _Command:
    return _Command(known.text, known.name, [_sent(value) for value in values])


def _rows(result: PGresult, readers: Sequence[Callable[[bytes], Any]]) -> list[list[Any]]:
    if not readers:
        return []
    value = result.get_value
    return [
        [None if (text := value(number, place)) is None else read(text) for place, read in enumerate(readers)]
        for number in range(result.ntuples)
    ]
