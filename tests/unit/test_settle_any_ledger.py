"""What holds of the plan for every ledger that the store can hold."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from turnsaga.ledger import CLOSED, IN_DOUBT, UNDOABLE, State
from turnsaga.settle import Action, OnUnknown, Plan, Row, halted, plan

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
A_SECOND = timedelta(seconds=1)
WHEN = (None, NOW - A_SECOND, NOW, NOW + A_SECOND)
ANY_LEDGER = settings(max_examples=300, deadline=None, database=None)


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[Row, ...]:
    """Draw the rows of one turn as the store can hold them: places are unique, failed undos are owned."""
    states = draw(st.lists(st.sampled_from(State), max_size=6))
    orders = draw(st.permutations(range(1, len(states) + 1)))
    when = st.sampled_from(WHEN)
    return tuple(
        Row(
            effect=f"e{number}",
            state=state,
            seq=number,
            order=order if state in UNDOABLE or draw(st.booleans()) else None,
            owned=state is State.COMPENSATION_FAILED or (state in IN_DOUBT and draw(st.booleans())),
            reversible=draw(st.booleans()),
            keyed=draw(st.booleans()),
            can_look_up=draw(st.booleans()),
            on_unknown=draw(st.sampled_from(OnUnknown)),
            halts=draw(st.booleans()),
            key_dies_with_undo=draw(st.booleans()),
            undo_given_up=draw(st.booleans()),
            wire_until=draw(when),
            key_until=draw(when),
            sends_left=draw(st.integers(0, 2)),
        )
        for number, (state, order) in enumerate(zip(states, orders, strict=True))
    )


def actions(answer: Plan) -> list[Action]:
    return [step.action for step in answer.steps]


def in_doubt_and_nobodys(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.state in IN_DOUBT and not row.owned]


@ANY_LEDGER
@given(ledgers())
def test_no_undo_of_any_kind_is_planned_beside_doubt(rows: tuple[Row, ...]) -> None:
    undoing = {Action.UNDO, Action.GIVE_UP_UNDO, Action.LEAVE_STANDING, Action.WAIT}

    if undoing & set(actions(plan(rows, now=NOW))):
        assert all(row.on_unknown is OnUnknown.COMPENSATE for row in in_doubt_and_nobodys(rows))
        assert not any(row.state is State.ACCEPTED for row in in_doubt_and_nobodys(rows))
        assert not any(row.state is State.PREPARED for row in rows)


@ANY_LEDGER
@given(ledgers())
def test_only_the_latest_commit_is_undone_next(rows: tuple[Row, ...]) -> None:
    by_id = {row.effect: row for row in rows}
    undoing = [
        by_id[step.effect]
        for step in plan(rows, now=NOW).steps
        if step.action in {Action.UNDO, Action.GIVE_UP_UNDO, Action.LEAVE_STANDING, Action.WAIT}
    ]

    waiting = halted(rows)
    assert len(undoing) <= 1
    for row in undoing:
        assert row.effect not in waiting
        if row.state in IN_DOUBT:
            # It may have been the very last.
            assert row.seq == max(other.seq for other in in_doubt_and_nobodys(rows))
            continue
        others = [other for other in rows if other.state in UNDOABLE and other.effect not in waiting]
        assert row.state is State.COMPENSATING or row.order == max(other.order or 0 for other in others)


@ANY_LEDGER
@given(ledgers())
def test_only_a_failed_undo_that_halts_has_others_wait_and_only_those_before_it(
    rows: tuple[Row, ...],
) -> None:
    waiting = halted(rows)

    for row in rows:
        behind = row.state is State.COMMITTED and any(
            other.halts
            and other.state is State.COMPENSATION_FAILED
            and (other.order is None or (row.order or 0) < other.order)
            for other in rows
        )
        assert (row.effect in waiting) is behind


@ANY_LEDGER
@given(ledgers())
def test_a_fenced_turn_sends_nothing_that_it_must_not_send(rows: tuple[Row, ...]) -> None:
    by_id = {row.effect: row for row in rows}

    for step in plan(rows, now=NOW).steps:
        if step.action is Action.SEND_AGAIN:
            row = by_id[step.effect]
            assert row.keyed
            assert row.reversible
            assert row.sends_left > 0
            assert row.key_until is None or row.key_until >= NOW
            assert not row.can_look_up


@ANY_LEDGER
@given(ledgers())
def test_a_turn_is_settled_exactly_when_every_row_is_undone_closed_or_owned(rows: tuple[Row, ...]) -> None:
    closed_for_good = CLOSED - {State.COMMITTED}

    answer = plan(rows, now=NOW)

    assert answer.settled == all(
        row.state in closed_for_good or row.owned or row.effect in halted(rows) for row in rows
    )


@ANY_LEDGER
@given(ledgers())
def test_settling_never_rests_before_its_end(rows: tuple[Row, ...]) -> None:
    answer = plan(rows, now=NOW)

    assert bool(answer.steps) != answer.settled


@ANY_LEDGER
@given(ledgers(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_the_rows(rows: tuple[Row, ...], random: Random) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)

    first, second = plan(rows, now=NOW), plan(shuffled, now=NOW)

    assert set(first.steps) == set(second.steps)
    assert len(first.steps) == len(second.steps)
    assert first.settled == second.settled
    assert plan(rows, now=NOW) == first


@ANY_LEDGER
@given(ledgers())
def test_each_effect_gets_at_most_one_step_and_only_a_wait_has_an_end(rows: tuple[Row, ...]) -> None:
    steps = plan(rows, now=NOW).steps

    assert len({step.effect for step in steps}) == len(steps)
    for step in steps:
        assert (step.until is not None) == (step.action is Action.WAIT)
        assert step.until is None or step.until > NOW
