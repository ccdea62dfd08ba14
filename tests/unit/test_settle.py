from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from turnsaga.ledger import IN_DOUBT, UNDOABLE, State
from turnsaga.settle import LEDGER_ONLY, Action, Plan, Row, Step, may_send_again, plan, resolution

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
A_SECOND = timedelta(seconds=1)
WHEN = (None, NOW - A_SECOND, NOW, NOW + A_SECOND)
YES_OR_NO = (False, True)

SINGLE_ROWS = tuple(
    Row(
        effect="one",
        state=state,
        order=1 if state in UNDOABLE else None,
        owned=owned,
        reversible=reversible,
        keyed=keyed,
        can_look_up=can_look_up,
        key_until=key_until,
        sends_left=sends_left,
    )
    for state, owned, reversible, keyed, can_look_up, key_until, sends_left in product(
        State, YES_OR_NO, YES_OR_NO, YES_OR_NO, YES_OR_NO, WHEN, (0, 1)
    )
    # Nobody owns an effect before it is in doubt; an undo that failed always has an owner.
    if not (owned and state in UNDOABLE | {State.PREPARED})
    and not (state is State.COMPENSATION_FAILED and not owned)
)


def actions(answer: Plan) -> list[Action]:
    return [step.action for step in answer.steps]


# ---------------------------------------------------------------- one row, all its forms


@pytest.mark.parametrize("fenced", YES_OR_NO)
def test_a_request_is_sent_again_only_where_its_key_still_holds(fenced: bool) -> None:  # noqa: FBT001  # a parameter
    for row in SINGLE_ROWS:
        expected = (
            row.keyed
            and (row.key_until is None or row.key_until >= NOW)
            and row.sends_left > 0
            and not (fenced and not row.reversible)
        )

        assert may_send_again(row, fenced=fenced, now=NOW) is expected, row


@pytest.mark.parametrize(
    ("row", "fenced", "expected"),
    [
        pytest.param(
            Row(effect="e", state=State.UNKNOWN, keyed=True, can_look_up=True),
            False,
            Action.SEND_AGAIN,
            id="a live turn repeats a keyed request even if it could ask",
        ),
        pytest.param(
            Row(effect="e", state=State.UNKNOWN, keyed=True, can_look_up=True),
            True,
            Action.LOOK_UP,
            id="an aborted turn asks where it can",
        ),
        pytest.param(
            Row(effect="e", state=State.UNKNOWN, keyed=True),
            True,
            Action.SEND_AGAIN,
            id="an aborted turn repeats a keyed request where that is the one way to learn",
        ),
        pytest.param(
            Row(effect="e", state=State.UNKNOWN, keyed=True, reversible=False),
            False,
            Action.SEND_AGAIN,
            id="a live turn repeats an irreversible keyed request",
        ),
        pytest.param(
            Row(effect="e", state=State.UNKNOWN, keyed=True, reversible=False),
            True,
            Action.HAND_OVER,
            id="an aborted turn doesn't create what it can't take back",
        ),
        pytest.param(
            Row(effect="e", state=State.UNKNOWN, keyed=True, key_until=NOW - A_SECOND),
            False,
            Action.HAND_OVER,
            id="past the key's life nobody sends",
        ),
        pytest.param(
            Row(effect="e", state=State.UNKNOWN, keyed=True, can_look_up=True, key_until=NOW - A_SECOND),
            False,
            Action.LOOK_UP,
            id="past the key's life a live turn asks too",
        ),
        pytest.param(
            Row(effect="e", state=State.UNKNOWN, keyed=True, can_look_up=True, sends_left=0),
            False,
            Action.LOOK_UP,
            id="past its budget a live turn asks too",
        ),
        pytest.param(
            Row(effect="e", state=State.COMMITTING, can_look_up=True),
            False,
            Action.LOOK_UP,
            id="a vendor that knows no keys is asked",
        ),
        pytest.param(
            Row(effect="e", state=State.COMMITTING),
            False,
            Action.HAND_OVER,
            id="a vendor that knows no keys and can't be asked is a person's",
        ),
        pytest.param(
            Row(effect="e", state=State.ACCEPTED, keyed=True, can_look_up=True),
            True,
            Action.FOLLOW_JOB,
            id="a job is followed whatever else its vendor offers",
        ),
    ],
)
def test_an_effect_in_doubt_is_resolved(row: Row, fenced: bool, expected: Action) -> None:  # noqa: FBT001  # as above
    assert resolution(row, fenced=fenced, now=NOW) is expected


@pytest.mark.parametrize("fenced", YES_OR_NO)
def test_a_resolution_never_undoes_and_never_sends_what_may_not_be_sent(fenced: bool) -> None:  # noqa: FBT001  # as above
    for row in SINGLE_ROWS:
        if row.state not in IN_DOUBT:
            continue

        chosen = resolution(row, fenced=fenced, now=NOW)

        assert chosen in {Action.FOLLOW_JOB, Action.LOOK_UP, Action.SEND_AGAIN, Action.HAND_OVER}
        if chosen is Action.SEND_AGAIN:
            assert may_send_again(row, fenced=fenced, now=NOW)
        if chosen is Action.LOOK_UP:
            assert row.can_look_up
        if chosen is Action.HAND_OVER:
            assert not row.can_look_up
            assert not may_send_again(row, fenced=fenced, now=NOW)


def test_a_single_row_gets_the_one_step_that_its_state_asks_for() -> None:
    by_state = {
        State.PREPARED: {Action.RELEASE},
        State.ACCEPTED: {Action.FOLLOW_JOB},
        State.COMMITTING: {Action.LOOK_UP, Action.SEND_AGAIN, Action.HAND_OVER},
        State.UNKNOWN: {Action.LOOK_UP, Action.SEND_AGAIN, Action.HAND_OVER},
        State.COMMITTED: {Action.UNDO, Action.LEAVE_STANDING},
        State.COMPENSATING: {Action.UNDO, Action.LEAVE_STANDING},
    }
    for row in SINGLE_ROWS:
        answer = plan([row], now=NOW)

        if row.owned or row.state not in by_state:
            assert answer == Plan((), settled=True), row
        else:
            (step,) = answer.steps
            assert step.effect == row.effect
            assert step.action in by_state[row.state], row
            assert not answer.settled


def test_an_aborted_turn_never_sends_an_irreversible_effect_again() -> None:
    for row in SINGLE_ROWS:
        if not row.reversible:
            assert Action.SEND_AGAIN not in actions(plan([row], now=NOW)), row


def test_nothing_is_sent_again_once_the_key_may_be_forgotten() -> None:
    for row in SINGLE_ROWS:
        if row.key_until == NOW - A_SECOND:
            assert Action.SEND_AGAIN not in actions(plan([row], now=NOW)), row
            assert resolution(row, fenced=False, now=NOW) is not Action.SEND_AGAIN


def test_an_empty_turn_is_settled() -> None:
    assert plan([], now=NOW) == Plan((), settled=True)


# ---------------------------------------------------------------- the undo of one row


def committed(effect: str = "one", order: int = 1, **changes: Any) -> Row:
    return replace(Row(effect=effect, state=State.COMMITTED, order=order), **changes)


def test_what_cannot_be_undone_stands_whatever_else_is_said_of_it() -> None:
    row = committed(reversible=False, undo_given_up=True, key_dies_with_undo=True, wire_until=NOW + A_SECOND)

    assert plan([row], now=NOW).steps == (Step(Action.LEAVE_STANDING, "one"),)


@pytest.mark.parametrize("state", sorted(UNDOABLE))
def test_an_undo_whose_budget_is_spent_is_given_up(state: State) -> None:
    row = committed(state=state, undo_given_up=True)

    assert plan([row], now=NOW).steps == (Step(Action.GIVE_UP_UNDO, "one"),)


def test_an_undo_that_ends_the_keys_life_waits_until_no_request_can_land() -> None:
    until = NOW + A_SECOND
    row = committed(key_dies_with_undo=True, wire_until=until)

    assert plan([row], now=NOW).steps == (Step(Action.WAIT, "one", until=until),)
    assert plan([row], now=until).steps == (Step(Action.UNDO, "one"),)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(committed(wire_until=NOW + A_SECOND), id="the key outlives the undo"),
        pytest.param(committed(key_dies_with_undo=True), id="every request was answered"),
        pytest.param(
            committed(state=State.COMPENSATING, key_dies_with_undo=True, wire_until=NOW + A_SECOND),
            id="the undo was sent already",
        ),
    ],
)
def test_an_undo_does_not_wait_without_need(row: Row) -> None:
    assert plan([row], now=NOW).steps == (Step(Action.UNDO, "one"),)


# ---------------------------------------------------------------- the order between rows


def test_what_was_never_sent_is_released_before_anything_else() -> None:
    rows = [
        Row(effect="sent", state=State.COMMITTING, can_look_up=True),
        Row(effect="held", state=State.PREPARED),
        Row(effect="held too", state=State.PREPARED),
        committed("done"),
    ]

    assert plan(rows, now=NOW).steps == (Step(Action.RELEASE, "held"), Step(Action.RELEASE, "held too"))


@pytest.mark.parametrize("state", sorted(IN_DOUBT))
def test_no_undo_starts_while_an_effect_in_doubt_has_no_owner(state: State) -> None:
    doubtful = Row(effect="doubtful", state=state, keyed=True)

    waiting = plan([committed("done"), doubtful], now=NOW)
    handed_over = plan([committed("done"), replace(doubtful, owned=True)], now=NOW)

    assert {step.effect for step in waiting.steps} == {"doubtful"}
    assert handed_over.steps == (Step(Action.UNDO, "done"),)


def test_effects_in_doubt_are_resolved_side_by_side() -> None:
    rows = [
        Row(effect="asked", state=State.UNKNOWN, can_look_up=True),
        Row(effect="repeated", state=State.COMMITTING, keyed=True),
        Row(effect="followed", state=State.ACCEPTED),
        Row(effect="a person's", state=State.UNKNOWN),
    ]

    assert plan(rows, now=NOW).steps == (
        Step(Action.LOOK_UP, "asked"),
        Step(Action.SEND_AGAIN, "repeated"),
        Step(Action.FOLLOW_JOB, "followed"),
        Step(Action.HAND_OVER, "a person's"),
    )


def test_commits_are_undone_one_at_a_time_in_reverse_order() -> None:
    rows = [committed("first", 1), committed("third", 3), committed("second", 2)]
    undone: list[str] = []

    while undoing := [row for row in rows if row.state in UNDOABLE]:
        (step,) = plan(rows, now=NOW).steps
        assert step.action is Action.UNDO
        undone.append(step.effect)
        rows = [replace(row, state=State.COMPENSATED) if row.effect == step.effect else row for row in rows]
        assert len(undone) <= len(rows), undoing

    assert undone == ["third", "second", "first"]
    assert plan(rows, now=NOW) == Plan((), settled=True)


def test_an_undo_that_failed_does_not_hold_up_those_before_it() -> None:
    rows = [
        committed("first", 1),
        Row(effect="second", state=State.COMPENSATION_FAILED, order=2, owned=True),
    ]

    assert plan(rows, now=NOW).steps == (Step(Action.UNDO, "first"),)


def test_an_undo_that_failed_is_not_settled_until_somebody_owns_it() -> None:
    failed = Row(effect="one", state=State.COMPENSATION_FAILED, order=1)

    assert not plan([failed], now=NOW).settled
    assert plan([replace(failed, owned=True)], now=NOW).settled


def test_an_effect_that_landed_late_is_undone_even_after_earlier_undos_began() -> None:
    rows = [
        committed("early", 1, state=State.COMPENSATING),
        committed("late", 2),
    ]

    assert plan(rows, now=NOW).steps == (Step(Action.UNDO, "late"),)


def test_the_actions_that_need_no_call_are_the_four_that_only_move_a_row() -> None:
    calls = {Action.LOOK_UP, Action.SEND_AGAIN, Action.FOLLOW_JOB, Action.UNDO, Action.WAIT}

    assert set(Action) - calls == LEDGER_ONLY
