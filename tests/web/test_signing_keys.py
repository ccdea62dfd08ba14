"""Keys that an issuer serves: when they are fetched, and what holds while it is away."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from tests.web.issuer import AUDIENCE, EC, ISSUER, JWKS, OTHER_RSA, KeyServer, bearer, token
from tests.web.served import Api, api_over, assert_problem, settings_of, until
from web.hosts import ANY_HOST
from web.identity import HEADER
from web.signing_keys import FetchedKeys
from web.tokens import TokenIdentity, TokenRules

LIFESPAN_S, PAUSE_S, FIRST_PAUSE_S = 300.0, 10.0, 1.0
RULES = TokenRules(
    issuer=ISSUER,
    audience=AUDIENCE,
    algorithms=("RS256", "ES256"),
    leeway_s=0,
    tenant_claim="tenant",
    user_claim="sub",
    role_claim="role",
)
OLD, NEW = token(), token(OTHER_RSA, kid="r2")


@dataclass
class Asked:
    """A web tier whose keys come from a server, and the clock that it goes by."""

    api: Api
    clock: list[float] = field(default_factory=lambda: [0.0])

    async def ask(self, of: str) -> httpx.Response:
        """Ask with a token for what needs nothing but an identity."""
        return await self.api.http.get("/v1/effects", headers=bearer(of))

    async def status(self, of: str) -> int:
        """Return how such a request is answered."""
        return (await self.ask(of)).status_code

    def wait(self, seconds: float) -> None:
        """Have time pass."""
        self.clock[0] += seconds


@pytest.fixture
def keys() -> KeyServer:
    """Return a server of one key, which isn't up yet."""
    server = KeyServer(b"")
    server.show("r")
    with server.up():  # takes a port that is its own from here on
        pass
    return server


@pytest.fixture
def up(keys: KeyServer) -> Iterator[KeyServer]:
    """Have the server up."""
    with keys.up():
        yield keys


@pytest.fixture
async def asked(keys: KeyServer, tmp_path: Path) -> AsyncIterator[Asked]:
    """Run the app over the server's keys."""
    clock = [0.0]
    fetched = FetchedKeys(
        keys.url,
        lifespan_s=LIFESPAN_S,
        pause_s=PAUSE_S,
        first_pause_s=FIRST_PAUSE_S,
        clock=lambda: clock[0],
    )
    async with api_over(tmp_path, identity_by=TokenIdentity(fetched, RULES, ANY_HOST)) as api:
        del api.http.headers[HEADER]
        yield Asked(api, clock)


async def test_keys_are_fetched_once_for_all_who_ask(up: KeyServer, asked: Asked) -> None:
    first = await asyncio.gather(*(asked.status(OLD) for _ in range(8)))
    asked.wait(LIFESPAN_S - 1)
    later = await asked.status(OLD)

    assert (set(first), later) == ({200}, 200)
    assert up.asked == 1


async def test_settings_of_an_address_have_keys_fetched_from_it(up: KeyServer, tmp_path: Path) -> None:
    settings = settings_of(jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_jwks_url=up.url)
    async with api_over(tmp_path, settings=settings) as api:
        del api.http.headers[HEADER]
        answer = await api.http.get("/v1/effects", headers=bearer(OLD))

    assert answer.status_code == 200
    assert up.asked == 1


async def test_new_key_is_fetched_when_a_token_names_it(up: KeyServer, asked: Asked) -> None:
    assert await asked.status(OLD) == 200
    up.show("r", "r2")
    asked.wait(PAUSE_S)

    assert await asked.status(NEW) == 200
    assert await asked.status(OLD) == 200
    assert up.asked == 2


async def test_unknown_key_ids_do_not_drive_fetches(up: KeyServer, asked: Asked) -> None:
    assert await asked.status(OLD) == 200
    up.show("r", "r2")
    asked.wait(PAUSE_S - 1)

    assert {await asked.status(token(kid=f"unknown-{n}")) for n in range(5)} == {401}
    assert await asked.status(NEW) == 401
    assert up.asked == 1
    asked.wait(1)
    assert {await asked.status(token(kid=f"unknown-{n}")) for n in range(5)} == {401}
    assert up.asked == 2
    assert await asked.status(NEW) == 200


async def test_key_that_was_withdrawn_is_refused_once_the_set_is_old(up: KeyServer, asked: Asked) -> None:
    assert await asked.status(OLD) == 200
    up.show("r2")
    asked.wait(LIFESPAN_S)

    assert await asked.status(OLD) == 401
    assert await asked.status(NEW) == 200


async def test_fetched_set_is_not_asked_for_what_no_key_could_make_good(up: KeyServer, asked: Asked) -> None:
    for hopeless in ("garbage", token(kid=None), token(algorithm="RS512")):
        assert await asked.status(hopeless) == 401

    assert up.asked == 0


async def test_without_any_key_nothing_is_decided(keys: KeyServer, asked: Asked) -> None:
    """Neither 401, which has clients throw good tokens away, nor entry."""
    with capture_logs() as logs:
        answer = await asked.ask(OLD)
        again = await asked.ask(OLD)

    assert_problem(answer, 503, "keys_unavailable")
    assert_problem(again, 503, "keys_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert await asked.status("garbage") == 401
    warned = [line for line in logs if line["event"] == "web.keys_unavailable"]
    assert [line["url"] for line in warned] == [keys.url]
    with keys.up():
        asked.wait(FIRST_PAUSE_S)
        assert await asked.status(OLD) == 200


async def test_keys_that_were_had_go_on_working_while_the_issuer_is_away(
    keys: KeyServer, asked: Asked
) -> None:
    with keys.up():
        assert await asked.status(OLD) == 200
    asked.wait(10 * LIFESPAN_S)

    assert [await asked.status(OLD) for _ in range(3)] == [200, 200, 200]
    assert await asked.status(NEW) == 401
    keys.show("r2")
    with keys.up():
        asked.wait(PAUSE_S)
        assert await asked.status(NEW) == 200
        assert await asked.status(OLD) == 401


ANSWERS = {
    "an error": (500, b'{"keys": []}'),
    "a redirect": (302, b""),
    "nothing": (200, b""),
    "a page": (200, b"<html>"),
    "not UTF-8": (200, b"\xff\xfe\x00"),
    "a list": (200, b"[]"),
    "no keys": (200, b'{"keys": []}'),
    "keys as text": (200, b'{"keys": "r"}'),
    "depth": (200, b"[" * 100_000),
    "a number for a key": (200, json.dumps({"keys": [{**JWKS["r"], "n": 7}]}).encode()),
    "a list for a kid": (200, json.dumps({"keys": [{**JWKS["r"], "kid": ["r"]}]}).encode()),
}


@pytest.mark.parametrize(("status", "body"), ANSWERS.values(), ids=ANSWERS)
async def test_answer_that_is_no_key_set_changes_nothing(
    up: KeyServer, asked: Asked, status: int, body: bytes
) -> None:
    good, (up.status, up.body) = up.body, (status, body)
    first = await asked.ask(OLD)
    asked.wait(FIRST_PAUSE_S)
    up.status, up.body = 200, good
    had = await asked.status(OLD)
    up.status, up.body = status, body
    asked.wait(LIFESPAN_S)
    kept = await asked.status(OLD)

    assert_problem(first, 503, "keys_unavailable")
    assert (had, kept) == (200, 200)
    assert up.asked == 3


async def test_key_that_can_not_be_used_is_left_out(up: KeyServer, asked: Asked) -> None:
    strange = {"kty": "new", "kid": "x"}
    up.body = json.dumps({"keys": [strange, JWKS["h"], {**JWKS["e"], "use": "enc"}, JWKS["r"]]}).encode()

    assert await asked.status(OLD) == 200
    assert await asked.status(token(EC, "ES256", "e")) == 401


async def test_others_are_served_while_keys_are_fetched(up: KeyServer, asked: Asked) -> None:
    up.hold.clear()
    waiting = asyncio.create_task(asked.status(OLD))
    gone = asyncio.create_task(asked.status(OLD))
    await until(lambda: up.asked == 1)
    probe = await asked.api.http.get("/healthz")
    gone.cancel()
    await asyncio.wait([gone])

    assert probe.status_code == 200
    assert not waiting.done()
    up.hold.set()
    assert await waiting == 200
    assert up.asked == 1
