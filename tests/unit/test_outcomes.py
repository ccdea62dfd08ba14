"""What an answer proves and what follows from it, over all statuses and all combinations."""

import itertools
from collections.abc import Iterator

import pytest

from turnsaga.errors import NotApplied, OutcomeUnknown, StillRunning
from turnsaga.ledger import State
from turnsaga.outcomes import KNOWN, Answer, Known, learned, read_status, then
from turnsaga.settle import Action, OnUnknown

BOTH = (False, True)
# 4xx that a gateway or a proxy says of the connection, whatever became of the request.
OF_THE_CONNECTION = {408, 425, 429, 499}
UNDECIDED = [known for known in Known if known not in {Known.APPLIED, Known.NOT_APPLIED}]


def test_every_answer_is_known_to_prove_something() -> None:
    assert set(KNOWN) == set(Answer)
    assert set(KNOWN.values()) == set(Known)


@pytest.mark.parametrize("replayed", BOTH)
def test_only_a_2xx_proves_it_done_and_only_a_refusal_proves_it_not_done(*, replayed: bool) -> None:
    for status in range(100, 600):
        known = KNOWN[read_status(status, replayed=replayed)]

        assert (known is Known.APPLIED) == (200 <= status < 300), status
        refused = 400 <= status < 500 and status not in OF_THE_CONNECTION
        assert (known is Known.NOT_APPLIED) == refused, status


def test_status_is_read_as_its_kind() -> None:
    for status in range(100, 600):
        assert read_status(status) is _kind(status), status
        stored = Answer.REPLAYED_ERROR if status >= 500 else _kind(status)
        assert read_status(status, replayed=True) is stored, status


def _kind(status: int) -> Answer:
    if status == 429:
        return Answer.TOO_MANY
    if status in OF_THE_CONNECTION:
        return Answer.UNEXPECTED
    kinds = {2: Answer.DONE, 4: Answer.REFUSED, 5: Answer.SERVER_ERROR}
    return kinds.get(status // 100, Answer.UNEXPECTED)


def test_answer_is_raised_in_the_words_of_what_it_proves() -> None:
    for answer in Answer:
        if answer is Answer.DONE:
            with pytest.raises(ValueError, match="return Committed"):
                learned(answer, "PAY")
            continue
        error = learned(answer, "PAY", 500)
        raised = {
            Known.NOT_APPLIED: NotApplied,
            Known.RUNNING: StillRunning,
            Known.UNKNOWN: OutcomeUnknown,
            Known.FINAL: OutcomeUnknown,
        }[KNOWN[answer]]

        assert type(error) is raised
        assert error.reason.startswith("PAY ")
        assert error.reason.endswith(" (500)")
        assert getattr(error, "final", False) is (KNOWN[answer] is Known.FINAL)


def _combinations() -> Iterator[tuple[bool, bool, bool, bool]]:
    """Give every keyed, can_look_up, stopped, reversible."""
    yield from itertools.product(BOTH, BOTH, BOTH, BOTH)


@pytest.mark.parametrize("on_unknown", OnUnknown)
def test_what_is_proved_is_written_down_whatever_the_tool_is(on_unknown: OnUnknown) -> None:
    for keyed, can_look_up, stopped, reversible in _combinations():
        for known, state in ((Known.APPLIED, State.COMMITTED), (Known.NOT_APPLIED, State.FAILED)):
            found = then(
                known, keyed=keyed, can_look_up=can_look_up, stopped=stopped, reversible=reversible,
                on_unknown=on_unknown,
            )  # fmt: skip

            assert found is state


@pytest.mark.parametrize("known", UNDECIDED)
def test_what_is_not_proved_is_asked_sent_again_or_handed_over(known: Known) -> None:
    """Sent again under a key alone, where another answer may come, and after a stop only to be undone."""
    for keyed, can_look_up, stopped, reversible in _combinations():
        may_be_sent = keyed and known is not Known.FINAL and (reversible or not stopped)
        if can_look_up and (stopped or not may_be_sent):
            expected = Action.LOOK_UP
        else:
            expected = Action.SEND_AGAIN if may_be_sent else Action.HAND_OVER
        found = then(known, keyed=keyed, can_look_up=can_look_up, stopped=stopped, reversible=reversible)

        assert found is expected, (keyed, can_look_up, stopped, reversible)


@pytest.mark.parametrize("known", UNDECIDED)
def test_tool_s_own_wish_goes_before_what_could_be_found_out(known: Known) -> None:
    for keyed, can_look_up, stopped, reversible in _combinations():
        for wish, action in ((OnUnknown.COMPENSATE, Action.UNDO), (OnUnknown.PERSON, Action.HAND_OVER)):
            found = then(
                known, keyed=keyed, can_look_up=can_look_up, stopped=stopped, reversible=reversible,
                on_unknown=wish,
            )  # fmt: skip

            assert found is action
