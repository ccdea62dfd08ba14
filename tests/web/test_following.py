"""Streams of events: whole, in order, from any place, and of no consequence."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.web.served import ADA, EVE, Api, Sent, api_over, assert_problem, served, stream, until
from turnsaga.errors import StoreUnavailable
from turnsaga.models import Principal


async def ended_turn(api: Api, conversation: str = "c1") -> str:
    """Leave a turn with six events behind."""
    turn = await api.start(conversation)
    await api.say(turn, "a", "b\nc", "d\u2028\u00e9", "e")
    await api.complete(turn)
    return turn


def numbers(events: list[Sent]) -> list[int]:
    return [event.number for event in events]


async def test_ended_turn_is_replayed_and_the_stream_ends(api: Api) -> None:
    turn = await ended_turn(api)
    async with stream(api.http, turn) as events:
        first = await events.rest()
    async with stream(api.http, turn) as events:
        again = await events.rest()

    assert numbers(first) == [1, 2, 3, 4, 5, 6]
    assert [event.kind for event in first] == ["turn_started", *["text_delta"] * 4, "turn_settled"]
    assert [event.data["text"] for event in first[1:5]] == ["a", "b\nc", "d\u2028\u00e9", "e"]
    assert first[5].data["state"] == "completed"
    assert again == first


async def test_stream_says_how_it_is_to_be_passed_on(api: Api) -> None:
    turn = await ended_turn(api)
    async with stream(api.http, turn) as events:
        headers = events.response.headers

    assert headers["content-type"].split(";")[0] == "text/event-stream"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"


async def test_data_of_an_effect_is_its_whole_view(api: Api) -> None:
    turn = await api.start()
    effect = await api.commit(turn)
    await api.complete(turn)
    async with stream(api.http, turn) as events:
        sent = await events.rest()

    assert [event.kind for event in sent[1:4]] == ["tool_prepared", "tool_committing", "tool_committed"]
    assert sent[3].data == (await api.http.get(f"/v1/effects/{effect}")).json()


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("by", ["header", "query"])
async def test_stream_goes_on_from_every_place(api: Api, place: int, by: str) -> None:
    turn = await ended_turn(api)
    last, after = (str(place), None) if by == "header" else (None, place)
    async with stream(api.http, turn, last=last, after=after) as events:
        sent = await events.rest()

    assert numbers(sent) == list(range(place + 1, 7))
    assert events.comments == []


@pytest.mark.parametrize("last", ["7", "999999999999999999", "9" * 100, "-1", "x", "1e0", "\u00b2", "1,2"])
async def test_place_that_the_turn_does_not_have_is_a_resync(api: Api, last: str) -> None:
    turn = await ended_turn(api)
    request = api.http.build_request("GET", f"/v1/turns/{turn}/events")
    request.headers = httpx.Headers([*request.headers.raw, (b"last-event-id", last.encode("latin-1"))])
    text = (await api.http.send(request)).text

    assert text.startswith(": resync\n\nid: 1\n")
    assert text.count("\nid: ") == 6


async def test_place_of_another_turn_is_a_resync(api: Api) -> None:
    other = await ended_turn(api, "c2")
    turn = await ended_turn(api)
    async with stream(api.http, turn, last=f"{other}:3") as events:
        sent = await events.rest()

    assert events.comments == ["resync"]
    assert numbers(sent) == [1, 2, 3, 4, 5, 6]


async def test_after_beyond_the_end_is_a_resync(api: Api) -> None:
    turn = await ended_turn(api)
    async with stream(api.http, turn, after=7) as events:
        sent = await events.rest()

    assert events.comments == ["resync"]
    assert numbers(sent) == [1, 2, 3, 4, 5, 6]


async def test_header_wins_over_query_and_an_empty_one_does_not(api: Api) -> None:
    turn = await ended_turn(api)
    async with stream(api.http, turn, last="4", after=1) as events:
        by_header = await events.rest()
    async with stream(api.http, turn, last="", after=5) as events:
        by_query = await events.rest()

    assert numbers(by_header) == [5, 6]
    assert numbers(by_query) == [6]


@pytest.mark.parametrize("after", ["-1", "x", "1.5", ""])
async def test_after_that_is_no_number_is_refused(api: Api, after: str) -> None:
    turn = await api.start()
    answer = await api.http.get(f"/v1/turns/{turn}/events", params={"after": after})

    assert_problem(answer, 422, "invalid_request", field="after")


async def test_unknown_turn_is_refused_before_the_stream_begins(api: Api) -> None:
    answer = await api.http.get("/v1/turns/trn_unknown/events")

    assert_problem(answer, 404, "not_found")


async def test_events_arrive_while_the_turn_runs_and_the_stream_ends_with_it(api: Api) -> None:
    turn = await api.start()
    async with served(api) as tier, tier.http() as http, stream(http, turn) as events:
        first = await events.next()
        await api.say(turn, "a")
        second = await events.next()
        await api.fence(turn)
        third = await events.next()
        await api.settle(turn)
        async with asyncio.timeout(5):
            rest = await events.rest()

    assert [first and first.kind, second and second.kind] == ["turn_started", "text_delta"]
    assert third is not None
    assert (third.number, third.kind) == (3, "turn_aborting")
    assert [(event.number, event.kind) for event in rest] == [(4, "turn_settled")]


async def test_two_who_leave_and_come_back_miss_nothing(api: Api) -> None:
    turn = await api.start()
    async with served(api) as tier, tier.http() as http:
        await api.say(turn, "a", "b")
        async with stream(http, turn) as events:
            read = [await events.next() for _ in range(2)]
        await api.say(turn, "c")
        await api.complete(turn)
        place = read[-1]
        assert place is not None
        async with stream(http, turn, last=str(place.number)) as events:
            rest = await events.rest()

    assert [event.number for event in read if event] + numbers(rest) == [1, 2, 3, 4, 5]


async def test_thousands_of_events_are_streamed_whole(api: Api) -> None:
    turn = await api.start()
    await asyncio.gather(*(api.say(turn, "x") for _ in range(1200)))
    await api.complete(turn)
    async with stream(api.http, turn, after=3) as events:
        sent = await events.rest()

    assert numbers(sent) == list(range(4, 1203))


async def test_idle_stream_is_kept_alive(tmp_path: Path) -> None:
    async with api_over(tmp_path, keep_alive_s=0.4) as api:
        turn = await api.start()
        async with served(api) as tier, tier.http() as http, stream(http, turn) as events:
            await events.next()
            next_one = asyncio.create_task(events.next())
            await until(lambda: events.comments.count("keep-alive") >= 2)
            await api.say(turn, "a")
            event = await next_one

    assert event is not None
    assert (event.number, event.kind) == (2, "text_delta")


async def test_reader_who_leaves_stops_nothing_and_leaves_nothing_behind(
    api: Api, capfd: pytest.CaptureFixture[str]
) -> None:
    turn = await api.start()
    async with served(api) as tier:
        async with tier.http() as http, stream(http, turn) as events:
            await events.next()
        state = tier.server.server_state
        await until(lambda: not state.connections and not state.tasks)
        await api.say(turn, "a")

    assert (await api.store.turn_view(ADA, turn)).state == "running"
    assert api.temporal.signalled == []
    written = capfd.readouterr()
    assert "Traceback" not in written.out + written.err


async def test_streams_end_when_the_server_stops(api: Api) -> None:
    turn = await api.start()
    async with served(api) as tier, tier.http() as http, stream(http, turn) as events:
        await events.next()
        tier.server.stop()
        async with asyncio.timeout(2):
            end = await events.next()
            await tier.ended

    assert end is None
    assert (await api.store.turn_view(ADA, turn)).state == "running"


async def test_stream_ends_without_a_false_end_when_the_ledger_goes_away(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await api.start()
    await api.say(turn, "a")
    page = api.store.event_page

    async def then_silent(who: Principal, turn: str, *, after: int, limit: int = 500) -> object:
        if after:
            raise StoreUnavailable("ledger", "locked")
        return await page(who, turn, after=after, limit=limit)

    monkeypatch.setattr(api.store, "event_page", then_silent)
    async with stream(api.http, turn) as events:
        sent = await events.rest()

    assert [event.kind for event in sent] == ["turn_started", "text_delta"]


async def test_event_with_half_a_surrogate_pair_is_sent(api: Api) -> None:
    turn = await api.start()
    await api.say(turn, "\ud83d")
    await api.complete(turn)
    async with stream(api.http, turn, after=1) as events:
        event = await events.next()

    assert event is not None
    assert event.data["text"] == "\ud83d"


async def test_streams_of_one_name_do_not_mix(api: Api) -> None:
    mine = await ended_turn(api)
    theirs = await api.start("c1", who=EVE)
    await api.say(theirs, "theirs", who=EVE)
    async with stream(api.http, mine) as events:
        sent = await events.rest()

    assert "theirs" not in [event.data.get("text") for event in sent]
