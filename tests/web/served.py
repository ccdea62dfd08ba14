"""What the tests of the web tier stand on: a real ledger, a Temporal that is told what to do, sockets."""

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import httpx
from fastapi import FastAPI
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turnsaga.client import TurnClient
from turnsaga.models import CallPlan, CallRef, EffectRef, FenceRequest, Principal, StepRef, TurnRef
from turnsaga.settle import OnUnknown
from turnsaga.store import CommitOutcome, EffectRow, NewCall, NewEffect, NewReply, SqlStore, UndoOutcome
from turnsaga.tools import CommitPolicy, Policy, ToolCard
from web.app import create_app
from web.identity import HEADER, Identity
from web.serving import Server, server_config
from web.settings import WebSettings

ADA = Principal(tenant="acme", user="ada")
EVE = Principal(tenant="acme", user="eve")
STRANGER = Principal(tenant="other", user="ada")
_keys = itertools.count(1)


class FakeTemporal:
    """Notes what it is asked, or is away."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.signalled: list[str] = []
        self.away = False
        self.service_client = self
        self.config = self
        self.target_host = "temporal.test:7233"

    async def start_workflow(self, _name: str, _start: object, *, id: str, **_options: object) -> None:  # noqa: A002
        self._answer()
        self.started.append(id)

    def get_workflow_handle(self, workflow: str) -> "FakeHandle":
        return FakeHandle(self, workflow)

    async def check_health(self, **_options: object) -> bool:
        self._answer()
        return True

    def _answer(self) -> None:
        if self.away:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")


@dataclass
class FakeHandle:
    """A run of the fake Temporal."""

    temporal: FakeTemporal
    workflow: str

    async def signal(self, _name: str, _argument: object, **_options: object) -> None:
        self.temporal._answer()
        self.temporal.signalled.append(self.workflow)


@dataclass
class Api:
    """One web tier over one ledger, called without a socket."""

    store: SqlStore
    temporal: FakeTemporal
    stopping: asyncio.Event
    app: FastAPI
    http: httpx.AsyncClient

    async def start(self, conversation: str = "c1", *, who: Principal = ADA, **body: Any) -> str:
        """Start a turn over HTTP and return its id."""
        answer = await self.http.post(
            f"/v1/conversations/{conversation}/turns",
            json={"message": "hello", **body},
            headers={**identity(who), "Idempotency-Key": f"key-{next(_keys)}"},
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["turn"])

    async def say(self, turn: str, *chunks: str, who: Principal = ADA) -> None:
        """Add text to a turn, one event a chunk."""
        for chunk in chunks:
            assert await self.store.append_text(StepRef(tenant=who.tenant, turn=turn, step=1), chunk)

    async def complete(self, turn: str, *, who: Principal = ADA) -> None:
        """Complete a turn as its workflow would."""
        assert (await self.store.complete_turn(TurnRef(tenant=who.tenant, turn=turn))).settled

    async def settle(self, turn: str, *, who: Principal = ADA) -> None:
        """Settle a fenced turn as its workflow would, where that takes no call."""
        assert (await self.store.next_steps(TurnRef(tenant=who.tenant, turn=turn))).settled

    async def fence(self, turn: str, *, who: Principal = ADA) -> None:
        """Fence a turn as the signal would."""
        await self.store.fence(FenceRequest(tenant=who.tenant, turn=turn, cause="abort", via="signal"))

    async def commit(self, turn: str, *, who: Principal = ADA, reversible: bool = False) -> str:
        """Commit one effect in a turn and return its id."""
        ref = await self._called(turn, who)
        claim = await self.store.claim_commit(ref, _new_effect(f"ts1_{turn}_{ref.step}"[:64], reversible))
        assert claim.row is not None
        row = claim.row
        effect = EffectRef(tenant=row.tenant, turn=row.turn, effect=row.effect)
        await self.store.record_commit(effect, row.token, CommitOutcome(applied=True, receipt={"id": "r"}))
        return row.effect

    async def hold(self, turn: str, *, who: Principal = ADA, reversible: bool = False) -> str:
        """Prepare one effect that waits for its user's confirmation, and return its id."""
        ref = await self._called(turn, who)
        new = _new_effect(f"ts1_{turn}_{ref.step}"[:64], reversible)
        asking = replace(new, policy=Policy(CommitPolicy.CONFIRMED))
        claim = await self.store.claim_commit(ref, asking, gate=False)
        assert claim.row is not None
        return claim.row.effect

    async def doubt(self, turn: str, *, who: Principal = ADA, can_land_ms: int = 1) -> str:
        """Lose the answer of an effect whose system can't be asked, hand it over, and return its id."""
        ref = await self._called(turn, who)
        new = replace(_new_effect(f"ts1_{turn}_{ref.step}"[:64], reversible=False), send_by_ms=1)
        claim = await self.store.claim_commit(ref, replace(new, landing_ms=can_land_ms))
        assert claim.row is not None
        await self.store.record_commit(claim.row.ref, claim.row.token, CommitOutcome(applied=None))
        await self.store.hand_over(claim.row.ref, "it can't be asked")
        return claim.row.effect

    async def stuck(self, conversation: str = "c1", *, who: Principal = ADA) -> str:
        """Leave one effect whose undo failed for good after an aborted turn, and return its id."""
        turn = await self.start(conversation, who=who)
        effect = await self.commit(turn, who=who, reversible=True)
        await self.fence(turn, who=who)
        claim = await self.store.claim_undo(self.ref(who, turn, effect))
        assert claim.sends
        row = claim.row
        await self.store.record_undo(row.ref, row.token, UndoOutcome(error="the vault is closed"))
        return effect

    async def _called(self, turn: str, who: Principal) -> CallRef:
        step = next(_keys)
        call = NewCall(call_id="c", tool="send_mail", arguments="{}", kind="effect")
        reply = NewReply(text="", finish="tool_calls", input_tokens=1, output_tokens=1, calls=(call,))
        assert await self.store.record_reply(StepRef(tenant=who.tenant, turn=turn, step=step), reply)
        return CallRef(tenant=who.tenant, turn=turn, step=step, index=0)

    @staticmethod
    def ref(who: Principal, turn: str, effect: str) -> EffectRef:
        """Return the name of an effect."""
        return EffectRef(tenant=who.tenant, turn=turn, effect=effect)

    @staticmethod
    def call(row: EffectRow) -> CallRef:
        """Return the call that prepared an effect."""
        return CallRef(tenant=row.tenant, turn=row.turn, step=row.step, index=row.call)

    async def standing(self, conversation: str = "c1", *, who: Principal = ADA) -> str:
        """Leave one effect standing after an aborted turn, and return its id."""
        turn = await self.start(conversation, who=who)
        effect = await self.commit(turn, who=who)
        await self.fence(turn, who=who)
        await self.settle(turn, who=who)
        return effect


def _new_effect(key: str, reversible: bool) -> NewEffect:  # noqa: FBT001
    return NewEffect(
        tool="send_mail",
        system="MAIL",
        identity=key,
        arguments={},
        arguments_digest="d",
        occurrence=1,
        key=key,
        request={},
        resources=(),
        plan=CallPlan(
            index=0, tool="send_mail", kind="effect", summary="a mail", attempt_ms=1000, total_ms=1000
        ),
        policy=Policy(CommitPolicy.IMMEDIATE),
        confirm=timedelta(minutes=1),
        shown_digest="shown",
        read_version=None,
        reversible=reversible,
        keyed=False,
        can_look_up=False,
        can_check_undone=False,
        on_unknown=OnUnknown.RESOLVE,
        halts=False,
        key_dies_with_undo=False,
        undo_keyed=False,
        key_life_ms=None,
        send_by_ms=1000,
        landing_ms=1000,
        max_sends=1,
        max_undo_sends=1,
        title="mail \u00fc",
        no_undo_reason="a mail can't be taken back",
    )


def identity(who: Principal) -> dict[str, str]:
    """Return the development identity's header."""
    return {HEADER: f"{who.tenant}/{who.user}/{who.role}"}


@asynccontextmanager
async def api_over(
    folder: Path,
    *,
    settings: WebSettings | None = None,
    identity_by: Identity | None = None,
    keep_alive_s: float = 10.0,
) -> AsyncIterator[Api]:
    """Run the app over a new ledger and a fake Temporal."""
    store = SqlStore(f"sqlite:///{folder / 'ledger.db'}")
    await store.open()
    await store.write_tool_cards(
        {
            "send_mail": ToolCard(name="send_mail", description="", system="MAIL", reversible=False),
            "find": ToolCard(name="find", description=""),
        }
    )
    temporal = FakeTemporal()
    stopping = asyncio.Event()
    client = TurnClient(cast("Client", temporal), store)
    app = create_app(
        client,
        settings or settings_of(),
        identity=identity_by,
        stopping=stopping,
        keep_alive_s=keep_alive_s,
        drain_s=5,
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8000", headers=identity(ADA)
    ) as http:
        yield Api(store, temporal, stopping, app, http)
    await store.close()


def settings_of(**values: Any) -> WebSettings:
    """Return settings with these values, whatever the environment says."""
    usual: dict[str, Any] = {
        "env": "development",
        "model": "script",
        "web_host": "127.0.0.1",
        "web_port": 8000,
    }
    return WebSettings(**{**usual, **values})


@dataclass
class Served:
    """A web tier on a port."""

    url: str
    server: Server
    ended: asyncio.Task[None]

    def http(self, who: Principal = ADA) -> httpx.AsyncClient:
        """Return a client that acts for a user, over sockets."""
        return httpx.AsyncClient(base_url=self.url, headers=identity(who), timeout=10)


@asynccontextmanager
async def served(api: Api, *, grace_s: int = 3) -> AsyncIterator[Served]:
    """Serve the app by our own server on a free port of loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        server = Server(server_config(api.app, grace_s=grace_s), api.stopping)
        ended = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield Served(f"http://127.0.0.1:{port}", server, ended)
        finally:
            server.stop()
            await ended


@dataclass(frozen=True)
class Sent:
    """One event of a stream as the client read it."""

    number: int
    kind: str
    data: Mapping[str, Any]


@dataclass
class Stream:
    """A stream of events as it comes in."""

    response: httpx.Response
    comments: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._lines = self.response.aiter_lines()

    async def next(self) -> Sent | None:
        """Return the next event, or None at the stream's end."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if line.startswith(":"):
                self.comments.append(line[1:].strip())
            elif line:
                name, _, value = line.partition(": ")
                assert name not in fields
                fields[name] = value
            elif fields:
                assert set(fields) == {"id", "event", "data"}
                return Sent(int(fields["id"]), fields["event"], json.loads(fields["data"]))
        assert not fields, "the stream ended within an event"
        return None

    async def rest(self) -> list[Sent]:
        """Return all that comes until the stream ends."""
        found: list[Sent] = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


@asynccontextmanager
async def stream(
    http: httpx.AsyncClient, turn: str, *, after: int | None = None, last: str | None = None
) -> AsyncIterator[Stream]:
    """Open a turn's stream of events."""
    params = {} if after is None else {"after": after}
    headers = {} if last is None else {"Last-Event-ID": last}
    async with http.stream("GET", f"/v1/turns/{turn}/events", params=params, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        yield Stream(response)


async def until(condition: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Return once the condition is true; fail if it doesn't become so."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # what is waited for isn't ours
            await asyncio.sleep(0.01)


def assert_problem(answer: httpx.Response, status: int, word: str, **members: object) -> dict[str, Any]:
    """Assert that the answer is this problem, and return its body."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["type"], body["status"]) == (status, word, status), answer.text
    assert body["title"]
    assert body["detail"]
    assert {name: body.get(name) for name in members} == members
    return body
