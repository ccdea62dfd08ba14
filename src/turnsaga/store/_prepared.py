"""Statements that SQLAlchemy compiles once, and that the driver runs from then on.

SQLAlchemy's execution of a statement costs several times the driver's, and a turn has a hundred of them.
What it is good for, one text of a statement for each database, is needed once a process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from sqlalchemy import Connection, Dialect, Insert, Select, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import UpdateBase

from turnsaga.store.schema import EPOCH, SafeText, safe_text

__all__ = [
    "Answer",
    "Column",
    "Driver",
    "Prepared",
    "Row",
    "Rows",
    "commit",
    "driver_of",
    "microseconds",
    "place_driver",
    "raised",
]

Row: TypeAlias = SimpleNamespace
"""One row; its columns are its attributes."""

Answer: TypeAlias = tuple[list[list[Any]], int]
"""The rows of a statement as Python values, and how many were found or changed."""

_DRIVER: Final = "turnsaga_driver"
_MICROSECOND: Final = timedelta(microseconds=1)


class Column(NamedTuple):
    """A column of a result; ``kind`` is how SQLAlchemy types it."""

    name: str
    kind: object


class Driver(Protocol):
    """One connection of a database's driver, within a transaction."""

    dialect: Dialect
    """What statements are compiled for; its parameters have places, not names."""

    def begin(self, *, writes: bool) -> None:
        """Begin a transaction, now or with its first statement."""
        ...

    def commit(self) -> None:
        """Commit it, together with what has waited for that."""
        ...

    def run(self, sql: str, values: Sequence[object], columns: Sequence[Column]) -> Answer:
        """Run it, after what was asked before."""
        ...

    def ask(
        self, sql: str, values: Sequence[object], columns: Sequence[Column]
    ) -> Answer | Callable[[], Answer]:
        """Run it in its turn; return its answer, or what waits for that."""
        ...

    def run_later(self, sql: str, values: Sequence[object]) -> None:
        """Run it before the transaction's COMMIT, at once or together with it."""
        ...


def place_driver(info: dict[str, Any], driver: Driver) -> None:
    """Note the driver of a connection that has just been opened, in the pool's record of it."""
    info[_DRIVER] = driver


def driver_of(connection: Connection) -> Driver:
    """Return the driver of a connection."""
    driver: Driver = connection.info[_DRIVER]
    return driver


def commit(connection: Connection) -> None:
    """Commit the transaction that the connection's driver has begun.

    Raises:
        DBAPIError: as SQLAlchemy would raise it.
    """
    try:
        driver_of(connection).commit()
    except connection.dialect.loaded_dbapi.Error as error:
        raise raised(connection, "COMMIT", error) from error
    if connection.in_transaction():
        # It has run statements itself, and takes them for a transaction of its own.
        connection.commit()


def microseconds(instant: datetime) -> int:
    """Return an instant as it is stored."""
    return (instant - EPOCH) // _MICROSECOND


class Rows:
    """What a statement gave, all of it; the first look at it waits for that."""

    __slots__ = ("_names", "_told")

    def __init__(self, names: Sequence[str], told: Answer | Callable[[], Answer]) -> None:
        self._names = names
        self._told = told

    @property
    def _answer(self) -> Answer:
        if callable(self._told):
            self._told = self._told()
        return self._told

    @property
    def rowcount(self) -> int:
        """How many rows were found or changed."""
        return self._answer[1]

    def __iter__(self) -> Iterator[Row]:
        for values in self._answer[0]:
            yield self._row(values)

    def one(self) -> Row:
        """Return the only row."""
        (values,) = self._answer[0]
        return self._row(values)

    def one_or_none(self) -> Row | None:
        """Return the only row, or None if there is none."""
        return self.one() if self._answer[0] else None

    def scalar_one(self) -> Any:  # noqa: ANN401  # a column's value
        """Return the first column of the only row."""
        (values,) = self._answer[0]
        return values[0]

    def scalar_one_or_none(self) -> Any:  # noqa: ANN401  # as above
        """Return the first column of the only row, or None if there is none."""
        return self.scalar_one() if self._answer[0] else None

    def _row(self, values: list[Any]) -> Row:
        row = Row()
        row.__dict__.update(zip(self._names, values, strict=True))
        return row


class _Form(NamedTuple):
    """A statement as one database takes it, for one set of parameters."""

    sql: str
    names: tuple[str, ...]
    fixed: Mapping[str, Any]
    texts: frozenset[str]
    columns: tuple[Column, ...]
    column_names: tuple[str, ...]


class Prepared:
    """A statement that is built once. It is run with the values of its parameters by name.

    An INSERT or an UPDATE sets the columns that it is given values of.
    """

    def __init__(self, built: Select[*tuple[Any, ...]] | UpdateBase) -> None:
        """Compile nothing yet: the first use on a database does."""
        self.built = built
        self._sets = isinstance(built, Insert | Update)
        self._forms: dict[object, _Form] = {}

    def run(self, connection: Connection, values: Mapping[str, Any]) -> Rows:
        """Run it.

        Raises:
            DBAPIError: as SQLAlchemy would raise it.
        """
        driver = driver_of(connection)
        form = self._form(driver, values)
        try:
            answer = driver.run(form.sql, _placed(form, values), form.columns)
        except connection.dialect.loaded_dbapi.Error as error:
            raise raised(connection, form.sql, error) from error
        return Rows(form.column_names, answer)

    def ask(self, connection: Connection, values: Mapping[str, Any]) -> Rows:
        """Run it without waiting: on Postgres it travels with the next statement whose answer is looked at.

        What was asked is run in that order, before whatever is run after it.

        Raises:
            DBAPIError: as SQLAlchemy would raise it, now or from the first look at the answer.
        """
        driver = driver_of(connection)
        form = self._form(driver, values)
        error_of = connection.dialect.loaded_dbapi.Error
        try:
            answer = driver.ask(form.sql, _placed(form, values), form.columns)
        except error_of as error:
            raise raised(connection, form.sql, error) from error
        if not callable(answer):
            return Rows(form.column_names, answer)
        wait = answer

        def waited() -> Answer:
            try:
                return wait()
            except error_of as error:
                raise raised(connection, form.sql, error) from error

        return Rows(form.column_names, waited)

    def run_later(self, connection: Connection, values: Mapping[str, Any]) -> None:
        """Run what gives no answer and isn't read before the transaction ends; it fails by then at last.

        Raises:
            DBAPIError: as SQLAlchemy would raise it.
        """
        driver = driver_of(connection)
        form = self._form(driver, values)
        try:
            driver.run_later(form.sql, _placed(form, values))
        except connection.dialect.loaded_dbapi.Error as error:
            raise raised(connection, form.sql, error) from error

    def _form(self, driver: Driver, values: Mapping[str, Any]) -> _Form:
        key = (driver.dialect.name, *values) if self._sets else driver.dialect.name
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = self._compiled(driver.dialect, values)
        return form

    def _compiled(self, dialect: Dialect, values: Mapping[str, Any]) -> _Form:
        compiled: Any = self.built.compile(dialect=dialect, column_keys=list(values) if self._sets else None)
        fixed = {name: value for name, value in compiled.params.items() if name not in values}
        columns = tuple(Column(str(column.key), column.type) for column in self.built.exported_columns)
        return _Form(
            sql=str(compiled),
            names=tuple(compiled.positiontup),
            fixed=fixed,
            texts=frozenset(
                name for name, bound in compiled.binds.items() if isinstance(bound.type, SafeText)
            ),
            columns=columns,
            column_names=tuple(column.name for column in columns),
        )


def _placed(form: _Form, values: Mapping[str, Any]) -> list[object]:
    given = {**form.fixed, **values} if form.fixed else values
    if form.texts:
        given = {**given, **{name: safe_text(given[name]) for name in form.texts}}
    return [given[name] for name in form.names]


def raised(connection: Connection, sql: str, error: Exception) -> DBAPIError:
    """Return a driver's error as SQLAlchemy raises it; a connection that is lost isn't used again."""
    dialect = connection.dialect
    lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)  # type: ignore[arg-type]
    if lost:
        connection.invalidate(error)
    return DBAPIError.instance(  # type: ignore[return-value]
        sql, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )
