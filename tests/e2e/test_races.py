"""Answers to what is held, from several clients: against an abort, each other, time and dying parts.

TURNSAGA_CAMPAIGN sets how many races there are of each kind.
"""

import asyncio
import itertools
import logging
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dev.driver import free_ports
from tests.e2e.api import LETTER, MONEY, Stack, stack_at
from tests.stack import call, reply, say
from turnsaga.testing import disorder

# The short form runs always.
RACES = int(os.environ.get("TURNSAGA_CAMPAIGN", "30"))
AT_ONCE = 6
_ids = itertools.count(1)
_log = logging.getLogger(__name__)
ASKED = {"send_invoice_email": "confirmed"}


@dataclass
class Question:
    """A mail that waits for its user's answer."""

    stack: Stack
    turn: str
    invoice: str
    shown: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        return {"version": self.shown["version"], "digest": self.shown["digest"]}

    async def answer(self, word: str, by: httpx.AsyncClient | None = None, **other: Any) -> httpx.Response:
        who = by or self.stack.web
        return await who.post(f"/v1/effects/{self.shown['effect']}/{word}", json={**self.body, **other})

    async def now(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.stack.web.get(f"/v1/effects/{self.shown['effect']}")).json()
        return found

    async def sent(self) -> int:
        return (await self.stack.applied("mail")).get(self.invoice, 0)


async def ask(stack: Stack, *more: Any) -> Question:
    """Start a turn whose mail is held for confirmation."""
    invoice = f"INV-Q{next(_ids)}"
    turn = await stack.start(
        reply(call("send_invoice_email", invoice=invoice, **LETTER)), *(more or (say("ok"),)), policies=ASKED
    )
    return Question(stack, turn, invoice, await stack.held(turn))


@pytest.fixture
async def other(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """The same user on another device."""
    async with httpx.AsyncClient(
        base_url=stack.web.base_url, headers=stack.web.headers, timeout=30
    ) as client:
        yield client


def word_of(answer: httpx.Response) -> str:
    """Return what an answer came to: "yes" if it counts, else the problem's word."""
    return "yes" if answer.status_code in {200, 202} else str(answer.json()["type"])


async def after(seconds: float, do: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
    await asyncio.sleep(seconds)
    return await do


async def race(count: int, one: Callable[[], Coroutine[Any, Any, None]]) -> None:
    lane = asyncio.Semaphore(AT_ONCE)

    async def go() -> None:
        async with lane:
            await one()

    await asyncio.gather(*(go() for _ in range(count)))


@dataclass
class Raced:
    """A race that is over: what each was answered."""

    question: Question
    first: httpx.Response
    second: httpx.Response


async def end_of(stack: Stack, raced: Raced) -> tuple[str, str]:
    """Return how a race's turn and mail ended, once its events and the systems agree with that."""
    view = await stack.settled(raced.question.turn)
    await stack.must_agree(view)
    assert disorder(await stack.events(raced.question.turn)) == ()
    (effect,) = view["effects"]
    return view["state"], effect["state"]


@pytest.mark.campaign
@pytest.mark.timeout(1200)
async def test_of_a_confirmation_and_an_abort_exactly_one_wins(
    stack: Stack, other: httpx.AsyncClient
) -> None:
    races: list[Raced] = []
    # A confirmation has won once its gate has opened, which takes it through Temporal: how much later an
    # abort comes to a dead heat depends on the machine, and is found by the races themselves.
    lead = 0.1

    async def one() -> None:
        nonlocal lead
        question = await ask(stack)
        confirmed, stopped = await asyncio.gather(
            question.answer("confirm"),
            after(lead * random.uniform(0.5, 1.5), other.post(f"/v1/turns/{question.turn}/abort", json={})),
        )
        lead = max(0.005, lead * 0.8) if word_of(confirmed) == "yes" else min(2.0, lead * 1.25)
        races.append(Raced(question, confirmed, stopped))

    await race(RACES, one)

    won: Counter[str] = Counter()
    ends = [await end_of(stack, raced) for raced in races]
    sent = await stack.applied("mail")
    for raced, end in zip(races, ends, strict=True):
        said = (word_of(raced.first), raced.second.status_code)
        if said == ("turn_aborted", 202):
            assert (end, sent.get(raced.question.invoice)) == (("aborted", "released"), None)
            won["abort"] += 1
            continue
        if said == ("yes", 202) and raced.first.json()["state"] == "prepared":
            # The gate took longer than an answer waits for it: the later truth is one of the two.
            won["left open"] += 1
            assert end in {("aborted", "released"), ("aborted", "standing")}
        elif said == ("yes", 202):
            won["confirmation, then stopped"] += 1
            assert end == ("aborted", "standing")
        else:
            # The turn had ended before its abort came.
            won["confirmation, before the abort"] += 1
            assert said == ("yes", 200)
            assert (raced.second.json()["state"], *end) == ("completed", "completed", "committed")
        assert sent.get(raced.question.invoice, 0) == (0 if end[1] == "released" else 1)
    _log.info("confirmation against abort: %s", dict(won))
    assert won["abort"] > 0, f"no abort won, so this shows little: {won}"
    assert won["confirmation, then stopped"] + won["confirmation, before the abort"] > 0, f"{won}"


@pytest.mark.campaign
@pytest.mark.timeout(1200)
async def test_of_a_confirmation_and_a_rejection_exactly_one_counts(
    stack: Stack, other: httpx.AsyncClient
) -> None:
    races: list[Raced] = []

    async def one() -> None:
        question = await ask(stack)
        lead = random.uniform(-0.01, 0.01)
        answers = [
            after(max(0.0, lead), question.answer("confirm")),
            after(max(0.0, -lead), question.answer("reject", other)),
        ]
        confirmed, rejected = await asyncio.gather(*answers)
        races.append(Raced(question, confirmed, rejected))

    await race(RACES, one)

    won: Counter[str] = Counter()
    ends = [await end_of(stack, raced) for raced in races]
    sent = await stack.applied("mail")
    for raced, end in zip(races, ends, strict=True):
        said = (word_of(raced.first), word_of(raced.second))
        won[said[0]] += 1
        assert said in {("yes", "already_decided"), ("already_decided", "yes")}
        assert {raced.first.status_code, raced.second.status_code} == {202, 409}
        assert end == ("completed", "committed" if said[0] == "yes" else "released")
        assert sent.get(raced.question.invoice, 0) == (1 if said[0] == "yes" else 0)
    _log.info("confirmation against rejection: %d to %d", won["yes"], won["already_decided"])
    assert len(won) == 2, f"one side won all, so this shows little: {won}"


@pytest.mark.campaign
@pytest.mark.timeout(600)
async def test_double_click_on_two_devices_sends_one_mail(stack: Stack, other: httpx.AsyncClient) -> None:
    async def one() -> None:
        question = await ask(stack)
        answers = await asyncio.gather(
            question.answer("confirm"),
            after(random.uniform(0, 0.04), question.answer("confirm", other)),
        )
        view = await stack.settled(question.turn)
        late = [await question.answer("confirm"), await question.answer("reject", other)]
        kinds = [event.kind for event in await stack.events(question.turn)]

        assert sorted(answer.status_code for answer in answers) == [200, 202]
        assert [answer.status_code for answer in late] == [200, 409]
        assert word_of(late[1]) == "already_decided"
        assert [effect["state"] for effect in view["effects"]] == ["committed"]
        assert kinds.count("tool_committing") == 1
        assert await question.sent() == 1

    await race(max(8, RACES // 10), one)


GARBAGE: Sequence[tuple[bytes, int, str]] = (
    (b"", 400, "malformed_json"),
    (b"{}", 422, "invalid_request"),
    (b"null", 422, "invalid_request"),
    (b'"no"', 422, "invalid_request"),
    (b"[]", 422, "invalid_request"),
    (b"true", 422, "invalid_request"),
    (b'{"approved":"false"}', 422, "invalid_request"),
    (b'{"approved":true}', 422, "invalid_request"),
    (b"yes", 400, "malformed_json"),
    (b"\xff\xfe", 400, "malformed_json"),
    (b'"' + b"y" * 1_000_000 + b'"', 422, "invalid_request"),
    (b'"' + b"y" * 1_100_000 + b'"', 413, "too_large"),
)


async def test_garbage_for_an_answer_is_none_and_leaves_the_question_open(stack: Stack) -> None:
    question = await ask(stack)
    right, effect = question.body, question.shown["effect"]
    for word in ("confirm", "reject"):
        for raw, status, problem in GARBAGE:
            answer = await stack.web.post(f"/v1/effects/{effect}/{word}", content=raw)
            told = answer.json()
            assert (answer.status_code, told["type"]) == (status, problem), raw[:40]
            assert len(answer.content) < 2000, "what was sent isn't sent back"
        fields: Sequence[tuple[dict[str, Any], int, str]] = (
            ({"version": str(right["version"])}, 422, "invalid_request"),
            ({"version": float(right["version"]) + 0.5}, 422, "invalid_request"),
            ({"version": True}, 422, "invalid_request"),
            ({"digest": None}, 422, "invalid_request"),
            ({"digest": "x" * 101}, 422, "invalid_request"),
            ({"approved": True}, 422, "invalid_request"),
            ({"version": right["version"] + 1}, 409, "changed"),
            ({"digest": "another"}, 409, "changed"),
            ({"digest": right["digest"].upper()}, 409, "changed"),
        )
        for wrong, status, problem in fields:
            answer = await question.answer(word, **wrong)
            assert (answer.status_code, word_of(answer)) == (status, problem), wrong
    assert await question.now() == question.shown
    assert await question.sent() == 0
    confirmed = await question.answer("confirm")
    await stack.settled(question.turn)

    assert confirmed.status_code == 202
    assert await question.sent() == 1


async def test_foreign_answer_and_one_to_nothing_are_told_the_same(stack: Stack) -> None:
    question = await ask(stack)
    effect = question.shown["effect"]
    unknown = await stack.web.post(f"/v1/effects/{effect[:-1]}0/confirm", json=question.body)
    told = {key: value for key, value in unknown.json().items() if key != "detail"}
    for who in ("acme/eve", "acme/eve/operator", "other/ada", "other/ada/operator"):
        async with httpx.AsyncClient(
            base_url=stack.web.base_url, headers={"X-Turnsaga-User": who}, timeout=30
        ) as foreign:
            for word in ("confirm", "reject"):
                answer = await question.answer(word, foreign)
                assert answer.status_code == 404
                assert {key: value for key, value in answer.json().items() if key != "detail"} == told
    assert await question.now() == question.shown
    await question.answer("reject")
    await stack.settled(question.turn)

    assert told["type"] == "not_found"
    assert await question.sent() == 0


async def test_answer_that_comes_too_late_says_what_was_first(stack: Stack) -> None:
    stopped, rejected, done = await ask(stack), await ask(stack), await ask(stack)
    unasked = await stack.start(
        reply(call("charge_card", invoice=f"INV-Q{next(_ids)}", **MONEY)),
        say(*["thinking "] * 400, delay_ms=50),
        policies={"charge_card": "turn_end"},
    )
    charge = Question(stack, unasked, "", await stack.held(unasked, "turn_end"))
    (await stack.web.post(f"/v1/turns/{stopped.turn}/abort")).raise_for_status()
    (await rejected.answer("reject")).raise_for_status()
    (await done.answer("confirm")).raise_for_status()
    words = {
        name: [word_of(await question.answer(word)) for word in ("confirm", "reject")]
        for name, question in {
            "stopped": stopped,
            "rejected": rejected,
            "done": done,
            "charge": charge,
        }.items()
    }
    await stack.web.post(f"/v1/turns/{unasked}/abort")
    ended = [await stack.settled(question.turn) for question in (stopped, rejected, done, charge)]

    assert words == {
        "stopped": ["turn_aborted", "turn_aborted"],
        "rejected": ["already_decided", "yes"],
        "done": ["yes", "already_decided"],
        "charge": ["not_held", "not_held"],
    }
    assert [view["effects"][0]["state"] for view in ended] == [
        "released",
        "released",
        "committed",
        "released",
    ]
    assert [await question.sent() for question in (stopped, rejected, done)] == [0, 0, 1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["worker", "web", "temporal"])
async def test_question_outlives_the_death_of_a_part_and_still_decides(stack: Stack, part: str) -> None:
    confirmed, rejected, stopped = await ask(stack), await ask(stack), await ask(stack)
    await stack.kill(part)
    await stack.serves()
    still = [await question.now() for question in (confirmed, rejected, stopped)]
    answers = [await confirmed.answer("confirm"), await rejected.answer("reject")]
    answers.append(await stack.web.post(f"/v1/turns/{stopped.turn}/abort", json={}))
    ended = [await stack.settled(question.turn, within=90) for question in (confirmed, rejected, stopped)]

    assert still == [question.shown for question in (confirmed, rejected, stopped)]
    assert [answer.status_code for answer in answers] == [202] * 3
    assert [view["effects"][0]["state"] for view in ended] == ["committed", "released", "released"]
    assert [await question.sent() for question in (confirmed, rejected, stopped)] == [1, 0, 0]
    await stack.must_agree(*ended)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["worker", "web", "temporal"])
async def test_answer_that_is_given_while_a_part_dies_holds(stack: Stack, part: str) -> None:
    """What was answered is true, what wasn't can be asked again, and it is carried out without help."""
    confirmed, rejected = await ask(stack), await ask(stack)
    *answers, _ = await asyncio.gather(
        confirmed.answer("confirm"), rejected.answer("reject"), stack.kill(part), return_exceptions=True
    )
    await stack.serves()
    given = [answer.status_code if isinstance(answer, httpx.Response) else None for answer in answers]
    if given[0] is None:
        assert (await confirmed.answer("confirm")).status_code in {200, 202}
    if given[1] is None:
        assert (await rejected.answer("reject")).status_code in {200, 202}
    # The sweeper tells a run that wasn't told, within its quarter of a minute.
    ended = [await stack.settled(question.turn, within=90) for question in (confirmed, rejected)]

    assert set(given) <= ({202, None} if part == "web" else {202})
    assert [view["effects"][0]["state"] for view in ended] == ["committed", "released"]
    assert [await question.sent() for question in (confirmed, rejected)] == [1, 0]
    await stack.must_agree(*ended)


@pytest.mark.timeout(300)
async def test_question_that_nobody_answers_in_time_is_withdrawn(tmp_path: Path) -> None:
    """The window is two seconds: late answers are told so, the model is told, and it can be asked again."""
    again = call("send_invoice_email", invoice="INV-W", repeat_on_purpose=True, **LETTER)
    async with stack_at(free_ports(5), tmp_path, env={"TURNSAGA_CONFIRM_WITHIN_S": "2"}) as stack:
        turn = await stack.start(
            reply(call("send_invoice_email", invoice="INV-W", **LETTER)),
            reply(again, **say("told {{results}} ")),
            say("ok"),
            policies=ASKED,
        )
        first = Question(stack, turn, "INV-W", await stack.held(turn))
        await stack.reaches(turn, "released")
        late = [await first.answer(word) for word in ("confirm", "reject")]
        second = Question(stack, turn, "INV-W", await stack.held(turn))
        in_time = await second.answer("confirm")
        view = await stack.settled(turn)
        told = await stack.events(turn)
        sent = await first.sent()

        races: list[Raced] = []

        async def at_the_end_of_the_window() -> None:
            question = await ask(stack)
            answer = await after(random.uniform(1.7, 2.2), question.answer("confirm"))
            races.append(Raced(question, answer, answer))

        await race(AT_ONCE * 2, at_the_end_of_the_window)
        ends = [await end_of(stack, raced) for raced in races]
        applied = await stack.applied("mail")

    assert [(answer.status_code, word_of(answer)) for answer in late] == [(409, "expired")] * 2
    assert in_time.status_code == 202
    assert second.shown["effect"] != first.shown["effect"]
    assert [effect["state"] for effect in view["effects"]] == ["released", "committed"]
    assert view["effects"][0]["error"] == "expired: not sent, nobody confirmed it in time"
    assert "expired" in "".join(str(event.data.get("text", "")) for event in told)
    assert sent == 1
    for raced, end in zip(races, ends, strict=True):
        word = word_of(raced.first)
        assert (word, end) in {
            ("yes", ("completed", "committed")),
            ("expired", ("completed", "released")),
        }
        assert applied.get(raced.question.invoice, 0) == (1 if word == "yes" else 0)
