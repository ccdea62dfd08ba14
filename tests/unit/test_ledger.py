from collections.abc import Iterable, MutableMapping
from itertools import product
from typing import cast

import pytest

from turnsaga.errors import IllegalTransition
from turnsaga.ledger import (
    BLOCKS_IDENTITY,
    CLOSED,
    IN_DOUBT,
    OPEN_TURN,
    TRANSITIONS,
    TURN_TRANSITIONS,
    UNDOABLE,
    Event,
    State,
    TurnEventName,
    TurnState,
    advance,
    advance_turn,
)

EFFECT_PAIRS = tuple(product((None, *State), Event))
TURN_PAIRS = tuple(product(TurnState, TurnEventName))
NEEDS_A_PERSON = frozenset({State.COMPENSATION_FAILED})
HOLDS_NOTHING_OUTSIDE = frozenset({State.RELEASED, State.FAILED, State.COMPENSATED})


def reachable(start: State | None) -> set[State]:
    found: set[State] = set()
    todo: list[State | None] = [start]
    while todo:
        here = todo.pop()
        following = {after for (before, _), after in TRANSITIONS.items() if before is here}
        todo.extend(following - found)
        found |= following
    return found


def leading_out(state: State) -> set[Event]:
    return {event for before, event in TRANSITIONS if before is state}


@pytest.mark.parametrize(("state", "event"), EFFECT_PAIRS, ids=str)
def test_a_pair_leads_where_the_table_says_or_is_refused(state: State | None, event: Event) -> None:
    table = dict(TRANSITIONS)
    expected = table.get((state, event))

    if expected is None:
        with pytest.raises(IllegalTransition) as refused:
            advance(state, event)
        assert (refused.value.subject, refused.value.state, refused.value.event) == ("effect", state, event)
        assert event.value in str(refused.value)
    else:
        assert advance(state, event) is expected
    assert dict(TRANSITIONS) == table


@pytest.mark.parametrize(("state", "event"), TURN_PAIRS, ids=str)
def test_a_pair_of_a_turn_leads_where_the_table_says_or_is_refused(
    state: TurnState, event: TurnEventName
) -> None:
    table = dict(TURN_TRANSITIONS)
    expected = table.get((state, event))

    if expected is None:
        with pytest.raises(IllegalTransition) as refused:
            advance_turn(state, event)
        assert (refused.value.subject, refused.value.state, refused.value.event) == ("turn", state, event)
    else:
        assert advance_turn(state, event) is expected
    assert dict(TURN_TRANSITIONS) == table


def test_every_state_can_be_reached_from_no_row() -> None:
    assert reachable(None) == set(State)


def test_every_event_happens_somewhere() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert {event for _, event in TURN_TRANSITIONS} == set(TurnEventName)


@pytest.mark.parametrize("state", sorted(set(State) - CLOSED))
def test_every_open_state_leads_on_or_is_a_persons(state: State) -> None:
    ends = CLOSED | NEEDS_A_PERSON

    assert state in ends or reachable(state) & ends


@pytest.mark.parametrize("state", sorted(CLOSED - {State.COMMITTED}))
def test_nothing_happens_to_an_effect_that_is_closed_for_good(state: State) -> None:
    assert leading_out(state) == set()


def test_a_committed_effect_is_only_undone_or_left_standing() -> None:
    assert leading_out(State.COMMITTED) == {Event.UNDO_CLAIMED, Event.LEFT_STANDING}


def test_an_effect_in_doubt_is_undone_only_where_its_claim_is_lost() -> None:
    """From ``unknown`` alone, for tools whose undo of nothing is harmless: never under a claim to commit."""
    undo = {Event.UNDO_CLAIMED, Event.LEFT_STANDING}

    assert {state: leading_out(state) & undo for state in IN_DOUBT if leading_out(state) & undo} == {
        State.UNKNOWN: {Event.UNDO_CLAIMED}
    }


def test_nothing_is_sent_but_by_a_claim_on_a_stored_request() -> None:
    into_committing = {before for (before, _), after in TRANSITIONS.items() if after is State.COMMITTING}

    assert into_committing == {State.PREPARED, State.COMMITTING, State.UNKNOWN}
    assert {before for (before, _), after in TRANSITIONS.items() if after is State.PREPARED} == {None}


def test_a_released_effect_was_never_sent() -> None:
    assert {before for (before, _), after in TRANSITIONS.items() if after is State.RELEASED} == {
        State.PREPARED
    }


def test_an_effect_counts_as_failed_only_from_doubt() -> None:
    assert {before for (before, _), after in TRANSITIONS.items() if after is State.FAILED} == IN_DOUBT


def test_a_person_is_heard_only_where_nothing_else_can_tell() -> None:
    words = {Event.RESOLVED_APPLIED, Event.RESOLVED_NOT_APPLIED, Event.RESOLVED_UNDONE, Event.RESOLVED_STANDS}
    heard = {before: leading_out(before) & words for before in State if leading_out(before) & words}

    assert heard == {
        State.UNKNOWN: {Event.RESOLVED_APPLIED, Event.RESOLVED_NOT_APPLIED},
        State.COMPENSATION_FAILED: {Event.RESOLVED_UNDONE, Event.RESOLVED_STANDS},
    }
    assert leading_out(State.COMPENSATION_FAILED) == heard[State.COMPENSATION_FAILED]


def test_only_an_effect_in_doubt_can_be_handed_over() -> None:
    handed = {before: after for (before, event), after in TRANSITIONS.items() if event is Event.HANDED_OVER}

    assert handed == {State.UNKNOWN: State.UNKNOWN, State.ACCEPTED: State.ACCEPTED}


def test_the_groups_of_states_cover_all_and_overlap_only_in_committed() -> None:
    groups: Iterable[frozenset[State]] = (
        frozenset({State.PREPARED}),
        IN_DOUBT,
        UNDOABLE,
        CLOSED,
        NEEDS_A_PERSON,
    )
    counts = {state: sum(state in group for group in groups) for state in State}

    overlap = UNDOABLE & CLOSED

    assert {state for state, count in counts.items() if count != 1} == overlap
    assert overlap == {State.COMMITTED}


def test_an_identity_is_blocked_by_every_effect_that_may_change_what_stands() -> None:
    may_change = set(State) - CLOSED - {State.PREPARED}

    assert may_change == BLOCKS_IDENTITY
    assert not BLOCKS_IDENTITY & HOLDS_NOTHING_OUTSIDE


def test_a_turn_is_open_exactly_while_something_can_happen_to_it() -> None:
    leads_on = {before for before, _ in TURN_TRANSITIONS}

    assert leads_on == OPEN_TURN
    assert set(TURN_TRANSITIONS.values()) - OPEN_TURN == set(TurnState) - OPEN_TURN


def test_a_turn_that_is_fenced_can_no_longer_complete() -> None:
    into_completed = {
        before for (before, _), after in TURN_TRANSITIONS.items() if after is TurnState.COMPLETED
    }

    assert into_completed == {TurnState.RUNNING}


@pytest.mark.parametrize("table", [TRANSITIONS, TURN_TRANSITIONS], ids=["effects", "turns"])
def test_a_table_cannot_be_changed(table: object) -> None:
    writable = cast("MutableMapping[object, object]", table)
    key = next(iter(writable))

    with pytest.raises(TypeError):
        writable[key] = "anything"
    with pytest.raises(TypeError):
        del writable[key]


@pytest.mark.parametrize("states", [CLOSED, IN_DOUBT, UNDOABLE, BLOCKS_IDENTITY, OPEN_TURN], ids=len)
def test_a_group_of_states_cannot_be_changed(states: object) -> None:
    assert isinstance(states, frozenset)
