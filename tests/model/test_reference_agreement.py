"""The library's tables and plan, held against the reference model that enumerates the protocol."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import effect_model
import pytest
from explore import explore
from scenarios import CONFIGS, MUTANTS

from tests.model.walk import MODEL_CONFIGS, Config, Offer, Seen, survey
from turnsaga.ledger import (
    CLOSED,
    IN_DOUBT,
    TRANSITIONS,
    TURN_TRANSITIONS,
    UNDOABLE,
    Event,
    State,
    TurnEventName,
    TurnState,
    advance,
)
from turnsaga.settle import Action, Row, plan

# A campaign walks every configuration to its end.
pytestmark = pytest.mark.timeout(3600)

NOW: Final = datetime(2026, 3, 1, tzinfo=UTC)
A_SECOND: Final = timedelta(seconds=1)

NOT_MODELLED: Final = {
    # The model has no change by a third party, and so no undo that finds one.
    (State.COMPENSATING, Event.UNDO_OVERTAKEN),
    # Nor has it tools that undo what is unknown, unasked.
    (State.UNKNOWN, Event.UNDO_CLAIMED),
    # The model ends where a person is asked; what that person then says is in no interleaving of it.
    (State.UNKNOWN, Event.RESOLVED_APPLIED),
    (State.UNKNOWN, Event.RESOLVED_NOT_APPLIED),
    (State.COMPENSATION_FAILED, Event.RESOLVED_UNDONE),
    (State.COMPENSATION_FAILED, Event.RESOLVED_STANDS),
}

TURN_NOT_MODELLED: Final = {
    # The model has one turn; one that is queued has no effects that could go wrong.
    (TurnState.QUEUED, TurnEventName.BEGUN),
    (TurnState.QUEUED, TurnEventName.ABORT_ACCEPTED),
    (TurnState.QUEUED, TurnEventName.FAILURE_MET),
    # A turn that fails settles as an aborted one does; the model has abort alone.
    (TurnState.RUNNING, TurnEventName.FAILURE_MET),
    (TurnState.FAILING, TurnEventName.SETTLED),
}

QUICK_MUTANTS: Final = (
    "gate_fence",
    "durable_first",
    "not_applied_scope",
    "landing_window",
    "key_life",
    "undo_own_claim",
    "late_truth",
)


@pytest.mark.parametrize("name", MODEL_CONFIGS)
def test_every_step_of_the_model_is_a_transition_of_the_tables(name: str) -> None:
    found = survey(name)

    assert found.disagreements == []
    assert found.states > 1000


def test_the_model_reaches_every_transition_of_an_effect() -> None:
    reached = {
        (before, event): after for name in MODEL_CONFIGS for before, event, after in survey(name).moves
    }

    assert set(TRANSITIONS) - set(reached) == NOT_MODELLED
    assert reached == {pair: after for pair, after in TRANSITIONS.items() if pair not in NOT_MODELLED}


def test_the_model_reaches_every_transition_of_a_turn() -> None:
    reached = {
        (before, event): after for name in MODEL_CONFIGS for before, event, after in survey(name).turn_moves
    }

    assert set(TURN_TRANSITIONS) - set(reached) == TURN_NOT_MODELLED
    assert reached == {
        pair: after for pair, after in TURN_TRANSITIONS.items() if pair not in TURN_NOT_MODELLED
    }


def test_the_model_has_the_states_of_the_tables() -> None:
    assert set(effect_model.STATE) - {"-"} == {state.value for state in State}
    assert len(effect_model.STATE) == len(State) + 1


def test_the_model_groups_states_as_the_tables_do() -> None:
    closed = {effect_model.STATE[number] for number in effect_model.CLOSED} - {"-"}
    in_doubt = {effect_model.STATE[number] for number in effect_model.IN_DOUBT}

    assert closed == set(CLOSED)
    assert in_doubt == set(IN_DOUBT)


def test_an_undo_that_never_got_its_claim_fails_by_way_of_one() -> None:
    claimed = advance(State.COMMITTED, Event.UNDO_CLAIMED)

    assert advance(claimed, Event.UNDO_FAILED) is State.COMPENSATION_FAILED
    assert (State.COMMITTED, Event.UNDO_FAILED) not in TRANSITIONS


@pytest.mark.parametrize("name", MODEL_CONFIGS)
def test_the_plan_offers_what_the_model_offers(name: str) -> None:
    found = survey(name)

    differences = [
        f"{rows}: the model offers {sorted(expected)}, the plan {sorted(offered)}"
        for rows, offers in found.plans.items()
        for offer in offers
        if (expected := _expected(rows, offer)) != (offered := _planned(found.config, rows))
    ]

    assert differences == []
    assert len(found.plans) > 10


@pytest.mark.parametrize("name", MODEL_CONFIGS)
def test_the_plan_closes_a_turn_exactly_when_the_model_does(name: str) -> None:
    found = survey(name)

    differences = [
        rows
        for rows, offers in found.plans.items()
        for offer in offers
        if offer.settled != plan(_rows(found.config, rows), now=NOW).settled
    ]

    assert differences == []
    assert any(offer.settled for offers in found.plans.values() for offer in offers)


@pytest.mark.parametrize("name", MODEL_CONFIGS)
def test_the_plan_undoes_nothing_that_the_model_would_not_undo_now(name: str) -> None:
    found = survey(name)

    early = [
        (rows, step)
        for rows, offers in found.plans.items()
        for step in plan(_rows(found.config, rows), now=NOW).steps
        if step.action is Action.UNDO
        and not any((Action.UNDO, int(step.effect)) in offer.actions for offer in offers)
    ]

    assert early == []


def test_every_action_of_the_plan_is_compared_somewhere() -> None:
    compared = {
        action
        for name in MODEL_CONFIGS
        for rows in survey(name).plans
        for action, _ in _planned(survey(name).config, rows)
    }

    assert compared == set(Action)


@pytest.mark.parametrize("rule", QUICK_MUTANTS)
def test_the_model_misses_a_rule_that_is_switched_off(rule: str) -> None:
    """The reference is alive: it finds a violation, and a trace that leads to it."""
    config = dict(MUTANTS)[rule]

    result = explore(effect_model.Model(CONFIGS[config].without(rule)), live=False)

    assert result.violation is not None
    assert result.trace


@pytest.mark.campaign
@pytest.mark.skipif(
    not os.environ.get("TURNSAGA_CAMPAIGN"),
    reason="enumerates every interleaving, some minutes on two cores; set TURNSAGA_CAMPAIGN to run it",
)
def test_the_whole_model_holds_and_misses_every_rule() -> None:
    done = subprocess.run(
        [sys.executable, "explore.py", "--quick"],
        cwd=Path(__file__).parent / "reference",
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "all as expected"


def _rows(config: Config, seen: tuple[Seen, ...]) -> tuple[Row, ...]:
    return tuple(_row(config, one, one.state) for one in seen if one.state is not None)


def _row(config: Config, seen: Seen, state: State) -> Row:
    repeat = config.repeat[seen.effect]
    # One undo more while none of them has claimed: an attempt that died first has used nothing up.
    undos = config.attempts + (state is State.COMMITTED)
    return Row(
        effect=str(seen.effect),
        state=state,
        order=seen.order or None,
        owned=seen.owned,
        reversible=config.undo[seen.effect] is not None,
        keyed=repeat in {"keyed", "upsert"},
        can_look_up=repeat == "lookup",
        key_dies_with_undo=repeat == "upsert",
        undo_given_up=seen.undos >= undos,
        wire_until=NOW + A_SECOND if seen.on_wire else None,
        key_until=NOW - A_SECOND if seen.forgot else NOW,
        sends_left=config.attempts + 1 - seen.commits,
    )


def _planned(config: Config, rows: tuple[Seen, ...]) -> set[tuple[Action, int]]:
    return {(step.action, int(step.effect)) for step in plan(_rows(config, rows), now=NOW).steps}


def _expected(rows: tuple[Seen, ...], offer: Offer) -> set[tuple[Action, int]]:
    """Return the model's offer in the plan's grain.

    The model goes on asking about what it has handed over, from the run that settles; the library does
    that in whoever owns the effect, so those steps are no part of this plan. And the model has no step
    for waiting, where the plan says what is waited for.
    """
    owned = {row.effect for row in rows if row.owned}
    asked = {Action.LOOK_UP, Action.SEND_AGAIN, Action.FOLLOW_JOB}
    expected = {step for step in offer.actions if not (step[0] in asked and step[1] in owned)}
    if any(action is Action.RELEASE for action, _ in expected):
        return expected
    expected |= {(Action.LOOK_UP, row.effect) for row in rows if _asks_in_vain(row, offer)}
    expected |= {(Action.FOLLOW_JOB, row.effect) for row in rows if row.waits_for_job and not row.owned}
    if not expected and not offer.settled:
        # Nothing can be done but to let the last commit request land or expire before the next undo.
        undoable = [row for row in rows if row.state in UNDOABLE]
        expected = {(Action.WAIT, max(undoable, key=lambda row: row.order).effect)}
    return expected


def _asks_in_vain(row: Seen, offer: Offer) -> bool:
    """Tell whether the model waits before it asks: "not found" would prove nothing so far."""
    resolved_otherwise = {(Action.SEND_AGAIN, row.effect), (Action.HAND_OVER, row.effect)}
    return row.waits_for_answer and not row.owned and not resolved_otherwise & offer.actions
