"""``post_message`` against the sandbox's wire: what is sent, and what each answer proves."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.tools.messages import Messages, PostMessage, identity_of
from sandbox import hook
from tests.stack import SandboxProcess, free_port
from tests.tools.calls import call_within, deaf
from turnsaga.errors import NotApplied, OutcomeUnknown
from turnsaga.testing import Truth
from turnsaga.tools import Once, Tools

_numbers = itertools.count(1)
CONTROLS = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))} - {"\n", "\t"}


@pytest.fixture
async def messages(sandbox: SandboxProcess) -> AsyncIterator[Messages]:
    await sandbox.clear()
    opened = Messages(sandbox.vendor.hook_url, sandbox.vendor.hook_token.get_secret_value())
    yield opened
    await opened.close()
    await sandbox.clear()


def new_text() -> str:
    return f"message {next(_numbers)} of the tool's tests"


def ask(channel: str, text: str) -> dict[str, str]:
    """Return what the engine stores of these arguments as the request."""
    return PostMessage.model_validate_json(json.dumps({"channel": channel, "text": text})).model_dump()


async def applied(sandbox: SandboxProcess, identity: str) -> int:
    truth = Truth.model_validate(await sandbox.truth())
    return sum(true.applied for true in truth.effects if (true.system, true.identity) == ("hook", identity))


async def sent(sandbox: SandboxProcess, identity: str) -> list[dict[str, object]]:
    calls = (await sandbox.truth())["calls"]
    return [each for each in calls if (each["system"], each["identity"]) == ("hook", identity)]


async def test_it_is_declared_as_what_can_neither_be_asked_nor_taken_back() -> None:
    messages = Messages("http://127.0.0.1:1/hook", "")
    tool = messages.tool()
    await messages.close()

    assert (tool.reversible, tool.repeat, tool.lookup, tool.commits) == (False, Once(), None, None)
    assert tool.irreversible_because
    assert Tools([tool]).cards()["post_message"].system == "hook"


@pytest.mark.parametrize(
    "channel", ["ops", "#ops", "a", "0", "x" * 80, "eu-west.billing_2", "messages", "turnsaga-doctor"]
)
async def test_message_is_posted_under_its_identity(
    sandbox: SandboxProcess, messages: Messages, channel: str
) -> None:
    text, call = f"{new_text()}:\n\tdone / 100% \U0001f389 «é»", call_within()

    committed = await messages.post(ask(channel, text), call)

    assert committed.receipt == {"status": 200, "answer": "ok"}
    assert committed.result == {"posted_to": channel}
    assert await applied(sandbox, f"{channel}/{text}") == 1
    [arrived] = await sent(sandbox, f"{channel}/{text}")
    assert (arrived["key"], arrived["path"]) == (call.key, f"/{channel}")
    posted = (await sandbox.http.get("/hook/messages")).json()["messages"][-1]
    assert (posted["channel"], posted["text"]) == (channel, text)


@pytest.mark.parametrize("length", [200, 201, 4000])
async def test_long_text_has_the_same_identity_in_the_ledger_and_at_the_vendor(
    sandbox: SandboxProcess, messages: Messages, length: int
) -> None:
    text = f"{new_text()} ".ljust(length, "\U0001f389")

    await messages.post(ask("ops", text), call_within())

    posted = (await sandbox.http.get("/hook/messages")).json()["messages"][-1]
    assert posted["text"] == text
    assert posted["identity"] == identity_of("ops", text)
    assert (posted["identity"] == f"ops/{text}") is (length == 200)
    assert await applied(sandbox, identity_of("ops", text)) == 1


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=600), st.sampled_from(["a", "x" * 80]))
def test_both_sides_name_every_message_alike_and_within_bounds(text: str, channel: str) -> None:
    identity = identity_of(channel, text)

    assert identity == hook.identity_of(channel, text)
    assert len(identity) <= 320
    if len(text) <= 200:
        assert identity == f"{channel}/{text}"
    else:
        assert len(identity) > len(channel) + 1 + 200, "no short text is named like a long one"


@pytest.mark.parametrize(
    "channel", ["", "#", "##ops", ".", "..", "ops/1", "ops\n", "o ps", "-ops", "ops?x", "opé", "x" * 81]
)
def test_channel_that_would_be_another_address_is_refused(channel: str) -> None:
    with pytest.raises(ValidationError):
        ask(channel, "hello")


@pytest.mark.parametrize("text", ["", " \n\t", "x" * 4001, *(f"a{char}b" for char in sorted(CONTROLS))])
def test_text_that_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        ask("ops", text)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValidationError):
        PostMessage.model_validate_json(b'{"channel": "ops", "text": "\\ud800"}')
    with pytest.raises(ValidationError):
        PostMessage(channel="ops", text="\ud800")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 413])
async def test_refusal_proves_that_nothing_was_posted(
    sandbox: SandboxProcess, messages: Messages, status: int
) -> None:
    text = new_text()
    await sandbox.knobs("hook", fail={"status": status, "times": 1, "applied": False})

    with pytest.raises(NotApplied, match=rf"^HOOK refuses it \({status}\)$"):
        await messages.post(ask("ops", text), call_within())
    assert await applied(sandbox, f"ops/{text}") == 0


@pytest.mark.parametrize("status", [429, 500, 502, 503])
@pytest.mark.parametrize("is_applied", [False, True])
async def test_other_answers_prove_nothing(
    sandbox: SandboxProcess, messages: Messages, status: int, *, is_applied: bool
) -> None:
    text = new_text()
    await sandbox.knobs("hook", fail={"status": status, "times": 1, "applied": is_applied})

    with pytest.raises(OutcomeUnknown, match=str(status)):
        await messages.post(ask("ops", text), call_within())
    assert await applied(sandbox, f"ops/{text}") == is_applied
    assert len(await sent(sandbox, f"ops/{text}")) == 1


async def test_lost_answer_is_unknown_and_the_message_is_sent_once(
    sandbox: SandboxProcess, messages: Messages
) -> None:
    text = new_text()
    await sandbox.knobs("hook", drop_response=1)

    with pytest.raises(OutcomeUnknown, match=r"^HOOK gave no answer \(\w+\)$"):
        await messages.post(ask("ops", text), call_within())
    assert await applied(sandbox, f"ops/{text}") == 1
    assert len(await sent(sandbox, f"ops/{text}")) == 1


async def test_answer_that_is_too_late_is_unknown(sandbox: SandboxProcess, messages: Messages) -> None:
    text = new_text()
    await sandbox.knobs("hook", latency_ms=60_000)

    with pytest.raises(OutcomeUnknown, match="ReadTimeout"):
        await messages.post(ask("ops", text), call_within(0.5))
    assert await applied(sandbox, f"ops/{text}") == 1


async def test_each_message_has_a_connection_of_its_own() -> None:
    """One that the other side gives up as the next message leaves would leave that one in doubt."""
    connections: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(await reader.readuntil(b"}"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    messages = Messages(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "")
    async with server:
        for _ in range(3):
            await messages.post(ask("ops", "hello"), call_within())
    await messages.close()

    assert len(connections) == 3
    assert all(b"authorization" not in head.lower() for head in connections), "there is no token to send"


async def test_refused_connection_proves_that_nothing_was_sent() -> None:
    messages = Messages(f"http://127.0.0.1:{free_port()}/hook", "token")

    with pytest.raises(NotApplied, match="nothing was sent"):
        await messages.post(ask("ops", "hello"), call_within())
    await messages.close()


async def test_connection_that_does_not_come_about_proves_that_nothing_was_sent() -> None:
    with deaf() as port:
        messages = Messages(f"http://127.0.0.1:{port}/hook", "token")
        with pytest.raises(NotApplied, match="nothing was sent"):
            await messages.post(ask("ops", "hello"), call_within(0.3))
        await messages.close()
