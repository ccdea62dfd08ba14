"""Questions about a turn's effects, asked before anybody waits for the answer (``Prepared.ask``)."""

from sqlalchemy import Connection

from turnsaga.errors import NotFound
from turnsaga.models import EffectRef, TurnRef
from turnsaga.store._prepared import Rows
from turnsaga.store._rows import EffectRow, TurnRow, effect_row
from turnsaga.store._statements import EFFECT, EFFECTS_OF_TURN

__all__ = ["ask_effect", "ask_effects", "effect_of", "effects_of"]


def ask_effects(connection: Connection, turn: TurnRef | TurnRow) -> Rows:
    """Ask for all effects of a turn, for ``effects_of``."""
    return EFFECTS_OF_TURN.ask(connection, {"tenant_is": turn.tenant, "turn_is": turn.turn})


def effects_of(found: Rows) -> tuple[EffectRow, ...]:
    """Return the effects that were asked for, in the order in which they were prepared."""
    return tuple(map(effect_row, found))


def ask_effect(connection: Connection, ref: EffectRef) -> Rows:
    """Ask for one effect of a turn, for ``effect_of``."""
    return EFFECT.ask(connection, {"tenant_is": ref.tenant, "turn_is": ref.turn, "effect_is": ref.effect})


def effect_of(found: Rows, effect: str) -> EffectRow:
    """Return the effect that was asked for.

    Raises:
        NotFound: there is none.
    """
    row = found.one_or_none()
    if row is None:
        raise NotFound("effect", effect)
    return effect_row(row)
