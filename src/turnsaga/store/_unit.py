"""One transaction on one turn: it holds the turn's row, moves effects, and writes the events of that.

The fence, the gate, prepare's insert and ``completed`` all begin with the same statement, an UPDATE of
the turn's row. So they come one after the other, whatever the database's isolation: a condition on the
turn that is only read, or asked for in a sub-select, can be true for two of them at once.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, insert, update

from turnsaga.errors import NotFound, StaleWrite
from turnsaga.ledger import IN_DOUBT, Event, State, TurnEventName, TurnState, advance, advance_turn
from turnsaga.models import EffectRef, TurnRef
from turnsaga.store import schema
from turnsaga.store._asking import ask_effect, ask_effects, effect_of, effects_of
from turnsaga.store._payloads import dump
from turnsaga.store._postgres import notify
from turnsaga.store._prepared import Prepared
from turnsaga.store._rows import EffectRow, TurnRow, changed, turn_row, view
from turnsaga.store._statements import matches
from turnsaga.store.schema import SAFE_TEXTS, safe_text

__all__ = ["Numbers", "Taking", "TurnUnit", "flush", "forget"]

_KINDS: Final[Mapping[State, str]] = {state: f"tool_{state.value}" for state in State} | {
    State.COMPENSATION_FAILED: "tool_attention"
}


_UNITS: Final = "turnsaga_units"
_NUMBERS: Final = ("next_event", "next_order", "next_seq")


class Numbers(NamedTuple):
    """How many numbers of a turn a transaction is likely to use: its next events, orders and places.

    They are taken by the statement that takes the turn's row, and what comes otherwise is put right at the
    end.
    """

    events: int = 0
    orders: int = 0
    seqs: int = 0


_NONE: Final = Numbers()
_turns, _effects = schema.turns, schema.effects
# Lock, condition, numbers and row in one statement.
_TAKING: Final = (
    update(_turns)
    .where(matches(_turns.c.tenant, _turns.c.turn))
    .values(
        next_event=_turns.c.next_event + bindparam("events"),
        next_order=_turns.c.next_order + bindparam("orders"),
        next_seq=_turns.c.next_seq + bindparam("seqs"),
    )
    .returning(_turns)
)
_TAKE: Final = Prepared(_TAKING)
_TAKE_RUNNING: Final = Prepared(
    _TAKING.where(_turns.c.fence.is_(None) & (_turns.c.state == TurnState.RUNNING))
)
_SET_TURN: Final = Prepared(update(_turns).where(matches(_turns.c.tenant, _turns.c.turn)))
_MOVE: Final = Prepared(
    update(_effects).where(
        matches(_effects.c.tenant, _effects.c.effect, _effects.c.state, _effects.c.version, _effects.c.token)
    )
)
_NOTE: Final = Prepared(
    update(_effects).where(matches(_effects.c.tenant, _effects.c.effect, _effects.c.version))
)
_EVENT: Final = Prepared(insert(schema.turn_events))


def flush(connection: Connection) -> None:
    """Write what this transaction's units have gathered, each turn and its events once."""
    for unit in connection.info.pop(_UNITS, ()):
        unit._flush()  # noqa: SLF001  # the same module


def forget(connection: Connection) -> None:
    """Drop what was gathered by a transaction that is rolled back."""
    connection.info.pop(_UNITS, None)


class Taking:
    """A turn's row that is asked for: what is asked of the ledger after it is answered under its lock."""

    def __init__(
        self,
        connection: Connection,
        ref: TurnRef,
        now: datetime,
        numbers: Numbers = _NONE,
        *,
        running: bool = False,
    ) -> None:
        """Ask. With ``running`` the row is only had if the turn runs and isn't fenced: one statement."""
        self._connection = connection
        self._ref = ref
        self._now = now
        self._numbers = numbers
        named = {"tenant_is": ref.tenant, "turn_is": ref.turn}
        taken = {"events": numbers.events, "orders": numbers.orders, "seqs": numbers.seqs}
        self._row = (_TAKE_RUNNING if running else _TAKE).ask(connection, {**named, **taken})

    def anyway(self) -> "Taking":
        """Ask once more, whatever the turn's state, and without numbers."""
        return Taking(self._connection, self._ref, self._now)

    def held(self) -> "TurnUnit":
        """Return what is held.

        Raises:
            NotFound: there is no such turn.
        """
        unit = self.unit()
        if unit is None:
            raise NotFound("turn", self._ref.turn)
        return unit

    def unit(self) -> "TurnUnit | None":
        """Return what is held, or None if the row isn't had."""
        row = self._row.one_or_none()
        if row is None:
            return None
        stored, taken = turn_row(row), self._numbers
        was = {
            "next_event": stored.next_event - taken.events,
            "next_order": stored.next_order - taken.orders,
            "next_seq": stored.next_seq - taken.seqs,
        }
        return TurnUnit(self._connection, changed(stored, was), self._now, stored=stored)


class TurnUnit:
    """The turn's row, held until the transaction ends, and what happens to its effects meanwhile."""

    def __init__(
        self, connection: Connection, turn: TurnRow, now: datetime, *, stored: TurnRow | None = None
    ) -> None:
        """Begin with a turn that this transaction holds; in ``stored`` numbers may be taken already."""
        self.connection = connection
        self.turn = turn
        self.now = now
        self._stored = stored or turn
        self._set: set[str] = set(_NUMBERS)
        self._events: list[dict[str, Any]] = []
        connection.info.setdefault(_UNITS, []).append(self)

    @classmethod
    def hold(
        cls, connection: Connection, ref: TurnRef, now: datetime, numbers: Numbers = _NONE
    ) -> "TurnUnit":
        """Take the turn's row, whatever its state.

        Raises:
            NotFound: there is no such turn.
        """
        return Taking(connection, ref, now, numbers).held()

    @classmethod
    def hold_running(
        cls, connection: Connection, ref: TurnRef, now: datetime, numbers: Numbers = _NONE
    ) -> "TurnUnit | None":
        """As ``hold``, if the turn runs and isn't fenced: the condition and the lock are one statement."""
        return Taking(connection, ref, now, numbers, running=True).unit()

    @classmethod
    def hold_effect(
        cls, connection: Connection, ref: EffectRef, now: datetime, numbers: Numbers = _NONE
    ) -> "tuple[TurnUnit, EffectRow]":
        """As ``hold``, for one effect of the turn, and return both.

        Raises:
            NotFound: there is no such turn, or it has no such effect.
        """
        taking = Taking(connection, TurnRef(tenant=ref.tenant, turn=ref.turn), now, numbers)
        found = ask_effect(connection, ref)
        return taking.held(), effect_of(found, ref.effect)

    def effects(self) -> tuple[EffectRow, ...]:
        """Return the turn's effects in the order in which they were prepared."""
        return effects_of(ask_effects(self.connection, self.turn))

    def effect(self, effect: str) -> EffectRow:
        """Return one effect of the turn.

        Raises:
            NotFound: the turn has no such effect.
        """
        ref = EffectRef(tenant=self.turn.tenant, turn=self.turn.turn, effect=effect)
        return effect_of(ask_effect(self.connection, ref), effect)

    def move(self, row: EffectRow, event: Event, *, quiet: bool = False, **changes: Any) -> EffectRow:  # noqa: ANN401
        """Advance one effect by compare-and-set on state, version and token, and write its event.

        ``quiet`` writes no event: a claim that is taken again changes nothing that people see.

        Raises:
            IllegalTransition: the table has no such pair.
            StaleWrite: the row has moved since it was read.
        """
        state = advance(row.state, event)
        where = {"state_is": row.state, "version_is": row.version, "token_is": row.token}
        # Acknowledged is what was seen, and it has moved since.
        new = self._changed(_MOVE, row, where, state=state, acknowledged_at=None, **changes)
        self._follow(new)
        if not quiet:
            attention = event is Event.HANDED_OVER
            self.emit("tool_attention" if attention else _KINDS[state], view(new).model_dump(mode="json"))
        return new

    def _follow(self, row: EffectRow) -> None:
        """Put the turn on the sweeper's list if this effect has to be followed without its run."""
        landed_late = row.state is State.COMMITTED and self.turn.state in {
            TurnState.ABORTED,
            TurnState.FAILED,
        }
        if (landed_late or (row.owned and row.state in IN_DOUBT)) and not self.turn.follow:
            self.set_turn(follow=True)

    def note(self, row: EffectRow, kind: str, **changes: Any) -> EffectRow:  # noqa: ANN401
        """Change what is said of an effect without changing its state, and write an event of that kind.

        Raises:
            StaleWrite: the row has moved since it was read.
        """
        new = self.amend(row, **changes)
        self.emit(kind, view(new).model_dump(mode="json"))
        return new

    def _changed(
        self,
        statement: Prepared,
        row: EffectRow,
        where: Mapping[str, Any],
        **changes: Any,  # noqa: ANN401
    ) -> EffectRow:
        """Change a row that is as it was read, and return it as the database now has it."""
        for name in SAFE_TEXTS & changes.keys():
            changes[name] = safe_text(changes[name])
        changes |= {"version": row.version + 1, "at": self.now}
        named = {"tenant_is": row.tenant, "effect_is": row.effect, **where}
        if statement.run(self.connection, {**named, **changes}).rowcount != 1:
            raise StaleWrite(row.effect, row.token)
        changes.pop("acknowledged_at", None)
        return changed(row, changes)

    def amend(self, row: EffectRow, **changes: Any) -> EffectRow:  # noqa: ANN401
        """As ``note``, without an event: what is seen of the effect changes with the event that follows.

        Raises:
            StaleWrite: the row has moved since it was read.
        """
        return self._changed(_NOTE, row, {"version_is": row.version}, **changes)

    def announce(self, row: EffectRow, *, kind: str | None = None) -> None:
        """Write an event of an effect that has just been inserted; its state's, if none is named."""
        self.emit(kind or _KINDS[row.state], view(row).model_dump(mode="json"))

    def take_order(self) -> int:
        """Return the next place among the turn's commits, and take it."""
        order = self.turn.next_order
        self.set_turn(next_order=order + 1)
        return order

    def advance_turn(self, event: TurnEventName, **changes: Any) -> None:  # noqa: ANN401
        """Move the turn itself.

        Raises:
            IllegalTransition: the table has no such pair.
        """
        self.set_turn(state=advance_turn(self.turn.state, event), **changes)

    def set_turn(self, **changes: Any) -> None:  # noqa: ANN401
        """Change the turn's row, which this transaction holds; it is written with the events at its end."""
        self._set |= changes.keys()
        self.turn = changed(self.turn, changes)

    def emit_started(self) -> None:
        """Write the first event of a turn that runs from now on."""
        turn = self.turn
        self.emit("turn_started", {"turn": turn.turn, "conversation": turn.conversation, "state": turn.state})

    def emit(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write one event under the turn's next number, in this very transaction."""
        number = self.turn.next_event
        self._events.append(
            {
                "tenant": self.turn.tenant,
                "turn": self.turn.turn,
                "number": number,
                "kind": kind,
                "data": dump(data),
                "at": self.now,
            }
        )
        self.set_turn(next_event=number + 1)

    def _flush(self) -> None:
        now = {name: getattr(self.turn, name) for name in self._set}
        changes = {name: value for name, value in now.items() if value != getattr(self._stored, name)}
        if changes:
            named = {"tenant_is": self.turn.tenant, "turn_is": self.turn.turn}
            _SET_TURN.run_later(self.connection, {**named, **changes})
        if self._events:
            for event in self._events:
                _EVENT.run_later(self.connection, event)
            notify(self.connection, self.turn.turn)
