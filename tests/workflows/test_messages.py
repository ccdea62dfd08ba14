"""A message to a chat in whole turns: it can't be taken back, asked about or sent again."""

import itertools
import random
import string
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client

from activities.deployment import deployment_tools
from activities.tools.messages import Messages
from tests.databases import Postgres
from tests.oracle import truth_of
from tests.stack import WHO, SandboxProcess, Turns, call, reply, say, turns_over
from tests.workflows.steps import THINKING, charge, invoice
from turnsaga.ledger import State, TurnState
from turnsaga.tools import Limits

_numbers = itertools.count(1)
AT_ONCE = {"post_message": "immediate!"}


def new_text() -> str:
    return f"message {next(_numbers)} of the turns' tests"


def post(text: str) -> dict[str, object]:
    return call("post_message", channel="ops", text=text)


async def sent(sandbox: SandboxProcess, identity: str) -> list[dict[str, Any]]:
    calls = (await sandbox.truth())["calls"]
    return [each for each in calls if (each["system"], each["identity"]) == ("hook", identity)]


async def test_message_that_was_posted_stands_after_an_abort_with_its_reason(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    text, name = new_text(), invoice()
    started = await turns.start(reply(charge(name)), reply(post(text)), THINKING, policies=AT_ONCE)
    await turns.reaches(started, "committed", "post_message")
    await turns.turns.abort(WHO, started.ref.turn)
    await turns.settled(started)
    effects = await turns.effects(started)

    assert effects[f"post_message ops/{text}"].state is State.STANDING
    assert effects[f"post_message ops/{text}"].no_undo_reason == "a message that was posted has been read"
    assert effects[f"charge_card {name}"].state is State.COMPENSATED
    assert len(await sent(sandbox, f"ops/{text}")) == 1
    await turns.must_agree(await truth_of(sandbox), started)


async def test_repeat_in_one_turn_posts_no_second_message(turns: Turns, sandbox: SandboxProcess) -> None:
    text = new_text()
    started = await turns.start(reply(post(text)), reply(post(text)), say("{{results}}"), policies=AT_ONCE)
    view = await turns.settled(started)

    assert [effect.state for effect in view.effects] == [State.COMMITTED]
    assert len(await sent(sandbox, f"ops/{text}")) == 1
    await turns.must_agree(await truth_of(sandbox), started)


async def test_lost_answer_stays_unknown_and_the_message_is_never_sent_twice(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    text = new_text()
    await sandbox.knobs("hook", drop_response=1)
    started = await turns.start(reply(post(text)), say("{{results}}"), policies=AT_ONCE)
    view = await turns.settled(started)

    assert view.state is TurnState.COMPLETED
    assert [effect.state for effect in view.effects] == [State.UNKNOWN]
    assert view.effects[0].needs_attention
    assert len(await sent(sandbox, f"ops/{text}")) == 1


async def test_nobody_posts_a_message_while_it_is_unknown_whether_it_is_there(
    client: Client, sandbox: SandboxProcess, tmp_path: Path
) -> None:
    text = new_text()
    messages = Messages(sandbox.vendor.hook_url, sandbox.vendor.hook_token.get_secret_value())
    tool = replace(messages.tool(), limits=Limits(wait=timedelta(milliseconds=300)))
    await sandbox.clear()
    await sandbox.knobs("hook", drop_response=1)
    async with turns_over(client, tmp_path, [tool]) as turns:
        first = await turns.settled(await turns.start(reply(post(text)), policies=AT_ONCE))
        second = await turns.settled(await turns.start(reply(post(text)), policies=AT_ONCE))
    await messages.close()

    assert [effect.state for effect in first.effects] == [State.UNKNOWN]
    assert [effect.state for effect in second.effects] == [State.RELEASED]
    assert len(await sent(sandbox, f"ops/{text}")) == 1


async def test_refused_message_fails_alone_and_the_turn_goes_on(
    turns: Turns, sandbox: SandboxProcess
) -> None:
    text, name = new_text(), invoice()
    await sandbox.knobs("hook", fail={"status": 403, "times": 1, "applied": False})
    started = await turns.start(reply(post(text)), reply(charge(name)), say("{{results}}"), policies=AT_ONCE)
    view = await turns.settled(started)

    assert view.state is TurnState.COMPLETED
    assert await turns.states(started) == {
        f"post_message ops/{text}": "failed",
        f"charge_card {name}": "committed",
    }
    await turns.must_agree(await truth_of(sandbox), started)


async def test_longest_message_is_named_alike_in_a_ledger_on_postgres(
    client: Client, postgres: Postgres, sandbox: SandboxProcess, tmp_path: Path
) -> None:
    """Its whole text would be too big for the index of identities; it is one that doesn't compress."""
    await sandbox.clear()
    letters = [*string.ascii_letters, *map(chr, range(0x1F300, 0x1F5FF))]
    text = "".join(random.Random(7).choices(letters, k=4000))
    database = postgres.new_database()
    async with (
        deployment_tools(sandbox.vendor) as tools,
        turns_over(client, tmp_path, tools, database=database) as turns,
    ):
        started = await turns.start(reply(post(text)), say("{{results}}"), policies=AT_ONCE)
        view = await turns.settled(started)
        await turns.must_agree(await truth_of(sandbox), started)

    [effect] = view.effects
    assert effect.state is State.COMMITTED
    assert effect.identity is not None
    assert effect.identity.startswith(f"ops/{text[:160]}… sha256:")
    assert len(await sent(sandbox, effect.identity)) == 1
