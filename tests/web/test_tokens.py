"""Who a bearer token says that acts: which tokens are taken, and how little is said of those that aren't."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from tests.web.issuer import (
    AUDIENCE,
    EC,
    ED,
    ISSUER,
    JWKS,
    OTHER_RSA,
    RSA,
    SHARED,
    bearer,
    claims,
    key_set,
    token,
)
from tests.web.served import ADA, Api, api_over, assert_problem, identity, settings_of
from turnsaga.models import Principal
from web.identity import HEADER

STARTS = "/v1/conversations/c1/turns"


def token_settings(**values: Any) -> Any:
    """Return settings of a static key set."""
    keys = json.dumps(values.pop("keys", key_set("r", "e", "d")))
    return settings_of(**{"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_keys": keys, **values})


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Api]:
    """Run the app with bearer tokens of a static key set."""
    async with api_over(tmp_path, settings=token_settings()) as api:
        del api.http.headers[HEADER]
        yield api


def now() -> int:
    return int(time.time())


def encoded(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def forged(secret: bytes, kid: str) -> str:
    """Return a token that is signed by HMAC with what everybody knows; PyJWT refuses to make one."""
    body = f"{encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': kid})}.{encoded(claims())}"
    signature = hmac.digest(secret, body.encode(), hashlib.sha256)
    return f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def public_pem() -> bytes:
    return RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def altered() -> str:
    """Return a good token whose claims were changed after it was signed."""
    header, _, signature = token().split(".")
    return f"{header}.{encoded(claims(role='service'))}.{signature}"


def restart(api: Api, headers: Any) -> Any:
    return api.http.post(STARTS, json={"message": "a"}, headers=[*headers, ("Idempotency-Key", "k")])


@dataclass(frozen=True)
class Good:
    """A token that is taken, and whom it says to act."""

    make: Callable[[], str]
    who: Principal = ADA


GOOD = {
    "RS256": Good(token),
    "ES256": Good(lambda: token(EC, "ES256", "e")),
    "EdDSA": Good(lambda: token(ED, "EdDSA", "d")),
    "audience among others": Good(lambda: token(aud=["other", AUDIENCE])),
    "expired within the leeway": Good(lambda: token(exp=now() - 20)),
    "valid from within the leeway": Good(lambda: token(nbf=now() + 20, iat=now() + 20)),
    "other tenant": Good(lambda: token(tenant="t" * 100), Principal(tenant="t" * 100, user="ada")),
    "odd user": Good(lambda: token(sub="auth0|A-1:@x.=+"), Principal(tenant="acme", user="auth0|A-1:@x.=+")),
    "without iat": Good(lambda: token(iat=None)),
    "user": Good(lambda: token(role="user")),
    "service": Good(lambda: token(role="service")),
    "operator": Good(lambda: token(role="operator")),
}


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
async def test_good_token_says_who_acts(guarded: Api, good: Good) -> None:
    answer = await restart(guarded, bearer(good.make()).items())

    assert answer.status_code == 201, answer.text
    assert await guarded.store.active_turn(good.who, "c1") == answer.json()["turn"]


BAD: dict[str, tuple[Callable[[], str], str]] = {
    "expired": (lambda: token(exp=now() - 40), "expired"),
    "never expires": (lambda: token(exp=None), "lacks"),
    "odd exp": (lambda: token(exp="soon"), "can't be read"),
    "endless exp": (lambda: token(exp=float("inf")), "can't be read"),
    "not yet valid": (lambda: token(nbf=now() + 60), "isn't valid yet"),
    "issued later": (lambda: token(iat=now() + 60), "isn't valid yet"),
    "other issuer": (lambda: token(iss="https://evil.test/"), "another issuer"),
    "issuer without slash": (lambda: token(iss=ISSUER.rstrip("/")), "another issuer"),
    "no issuer": (lambda: token(iss=None), "lacks"),
    "other audience": (lambda: token(aud="other"), "another audience"),
    "other audiences": (lambda: token(aud=["other", "turnsaga2"]), "another audience"),
    "no audience": (lambda: token(aud=None), "lacks"),
    "other signer": (lambda: token(OTHER_RSA), "signature is wrong"),
    "altered": (altered, "signature is wrong"),
    "no signature": (lambda: token().rpartition(".")[0] + ".", "signature is wrong"),
    "unknown kid": (lambda: token(OTHER_RSA, kid="r2"), "a key that isn't accepted"),
    "no kid": (lambda: token(kid=None), "a key that isn't accepted"),
    "kid of another key": (lambda: token(kid="e"), "a way that isn't accepted"),
    "none": (lambda: jwt.encode(claims(), "", "none", {"kid": "r"}), "a way that isn't accepted"),
    "None": (lambda: f"{encoded({'alg': 'None', 'kid': 'r'})}.{encoded(claims())}.", "a way that isn't"),
    "algorithm not named": (lambda: token(algorithm="RS512"), "a way that isn't accepted"),
    "HMAC with the public key": (lambda: forged(public_pem(), "r"), "a way that isn't accepted"),
    "no tenant": (lambda: token(tenant=None), "tenant"),
    "empty tenant": (lambda: token(tenant=""), "tenant"),
    "tenant with slash": (lambda: token(tenant="acme/x"), "tenant"),
    "tenant with newline": (lambda: token(tenant="acme\n"), "tenant"),
    "long tenant": (lambda: token(tenant="t" * 101), "tenant"),
    "tenant is a number": (lambda: token(tenant=7), "tenant"),
    "tenant is a list": (lambda: token(tenant=["acme"]), "tenant"),
    "no user": (lambda: token(sub=None), "user"),
    "odd user": (lambda: token(sub="ad a"), "user"),
    "user is a number": (lambda: token(sub=7), "can't be read"),
    "unknown role": (lambda: token(role="admin"), "role"),
    "role in capitals": (lambda: token(role="Service"), "role"),
    "empty role": (lambda: token(role=""), "role"),
    "roles": (lambda: token(role=["service"]), "role"),
    "null role": (lambda: token(said={**claims(), "role": None}), "role"),
    "claims are a list": (
        lambda: jwt.PyJWS().encode(b"[]", RSA, "RS256", {"kid": "r"}),
        "can't be read",
    ),
    "kid is a number": (lambda: f"{encoded({'alg': 'RS256', 'kid': 7})}.e30.e30", "can't be read"),
    "alg is a list": (lambda: f"{encoded({'alg': ['RS256'], 'kid': 'r'})}.e30.e30", "a way that isn't"),
    "no alg": (lambda: f"{encoded({'kid': 'r'})}.e30.e30", "a way that isn't accepted"),
    "critical extension": (
        lambda: jwt.encode(claims(), RSA, "RS256", {"kid": "r", "crit": ["x"], "x": 1}),
        "can't be read",
    ),
    "garbage": (lambda: "garbage", "can't be read"),
    "dots": (lambda: "..", "can't be read"),
    "four parts": (lambda: token() + ".e30", "can't be read"),
    "deep header": (lambda: base64.b64encode(b"[" * 9000).decode() + ".e30.e30", "can't be read"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said"), BAD.values(), ids=BAD)
async def test_bad_token_is_told_in_general_words(guarded: Api, make: Callable[[], str], said: str) -> None:
    bad = make()
    with capture_logs() as logs:
        answer = await restart(guarded, bearer(bad).items())

    problem = assert_problem(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert said in problem["detail"]
    shown = answer.text + json.dumps([line for line in logs if line["log_level"] != "debug"])
    assert [
        part for part in (*bad.split("."), "acme", "ada", "evil", "admin") if part and part in shown
    ] == []
    assert [line["event"] for line in logs if line["log_level"] != "debug"] == ["web.request"]
    assert guarded.temporal.started == []


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer ")],
        [("Authorization", "{token}")],
        [("Authorization", "Basic {token}")],
        [("Authorization", "Bearer {token} {token}")],
        [("Authorization", "Bearer {token}, Bearer {token}")],
        [("Authorization", "Bearer {token}\u00e9")],
        [("Authorization", "Bearer {token}"), ("Authorization", "Bearer {token}")],
        [("Authorization", "Bearer {token}"), ("authorization", "Basic YTpi")],
    ],
    ids=range(11),
)
async def test_header_that_is_not_one_bearer_token_is_refused(
    guarded: Api, headers: list[tuple[str, str]]
) -> None:
    good = token()
    raw = [(name.encode(), value.format(token=good).encode("latin-1")) for name, value in headers]

    answer = await guarded.http.get("/v1/effects", headers=raw)

    problem = assert_problem(answer, 401, "unauthenticated")
    assert "Authorization: Bearer" in problem["detail"]
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_scheme_is_read_in_whatever_case(guarded: Api, scheme: str) -> None:
    answer = await guarded.http.get("/v1/effects", headers={"Authorization": f"{scheme} {token()}"})

    assert answer.status_code == 200


@pytest.mark.parametrize("also", [{}, {"Authorization": "{token}"}], ids=["alone", "beside a token"])
async def test_development_header_is_refused_and_said_so(guarded: Api, also: dict[str, str]) -> None:
    headers = {**identity(ADA), **(bearer(token()) if also else {})}

    problem = assert_problem(await guarded.http.get("/v1/effects", headers=headers), 401, "unauthenticated")

    assert HEADER in problem["detail"]


async def test_token_is_ignored_where_the_development_identity_is_taken(api: Api) -> None:
    """Without settings of tokens nothing can check one, so none may decide who acts."""
    turn = await api.start()
    answer = await api.http.get(f"/v1/turns/{turn}", headers=bearer(token(sub="eve")))
    del api.http.headers[HEADER]
    alone = await api.http.get(f"/v1/turns/{turn}", headers=bearer(token()))

    assert answer.status_code == 200
    assert_problem(alone, 401, "unauthenticated")


async def test_shared_secret_signs_only_what_names_it(tmp_path: Path) -> None:
    """HMAC may be named; a public key of the same set is no secret all the same."""
    settings = token_settings(keys=key_set("h", "r"), jwt_algorithms="RS256, HS256")
    secret = base64.urlsafe_b64decode(SHARED)
    async with api_over(tmp_path, settings=settings) as api:
        del api.http.headers[HEADER]

        async def status(of: str) -> int:
            return (await api.http.get("/v1/effects", headers=bearer(of))).status_code

        assert await status(token(secret, "HS256", "h")) == 200
        assert await status(token()) == 200
        assert await status(token(b"x" * 48, "HS256", "h")) == 401
        assert await status(token(secret, "HS256", "r")) == 401
        for public in (public_pem(), public_pem().strip(), str(JWKS["r"]["n"]).encode()):
            assert await status(forged(public, "r")) == 401
            assert await status(forged(public, "h")) == 401


async def test_shared_secret_signs_nothing_where_hmac_is_not_named(tmp_path: Path) -> None:
    secret = base64.urlsafe_b64decode(SHARED)
    async with api_over(tmp_path, settings=token_settings(keys=key_set("h", "r"))) as api:
        del api.http.headers[HEADER]
        answer = await api.http.get("/v1/effects", headers=bearer(token(secret, "HS256", "h")))

    assert_problem(answer, 401, "unauthenticated")


async def test_single_key_needs_no_kid(tmp_path: Path) -> None:
    bare = {name: value for name, value in JWKS["r"].items() if name != "kid"}
    async with api_over(tmp_path, settings=token_settings(keys={"keys": [bare]})) as api:
        del api.http.headers[HEADER]
        good = await api.http.get("/v1/effects", headers=bearer(token(kid=None)))
        other = await api.http.get("/v1/effects", headers=bearer(token(OTHER_RSA, kid=None)))

    assert (good.status_code, other.status_code) == (200, 401)


async def test_names_of_claims_and_leeway_are_the_settings_own(tmp_path: Path) -> None:
    settings = token_settings(
        jwt_claim_tenant="https://acme.test/org", jwt_claim_user="uid", jwt_claim_role="kind", jwt_leeway_s=0
    )
    said = {
        "https://acme.test/org": "other",
        "uid": "eve",
        "kind": "operator",
        "role": "nonsense",
        "tenant": 1,
    }
    async with api_over(tmp_path, settings=settings) as api:
        del api.http.headers[HEADER]
        answer = await restart(api, bearer(token(said=claims(**said))).items())
        default = await restart(api, bearer(token()).items())
        expired = await restart(api, bearer(token(said=claims(**said, exp=now() - 5))).items())
        owner = Principal(tenant="other", user="eve")

        assert await api.store.active_turn(owner, "c1") == answer.json()["turn"]
    assert_problem(default, 401, "unauthenticated")
    assert_problem(expired, 401, "unauthenticated")


OTHERS = {
    "other tenant": {"tenant": "other"},
    "other user": {"sub": "eve"},
    "other tenant's operator": {"tenant": "other", "role": "operator"},
    "other user's service": {"sub": "eve", "role": "service"},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_tokens_of_others_see_and_stop_nothing(guarded: Api, other: dict[str, str]) -> None:
    turn = (await restart(guarded, bearer(token()).items())).json()["turn"]
    theirs, own = bearer(token(**other)), bearer(token(role="operator"))

    async def ask(method: str, path: str, headers: dict[str, str]) -> httpx.Response:
        return await guarded.http.request(method, path, headers=headers)

    for method, path in (
        ("GET", "/v1/turns/{}"),
        ("GET", "/v1/turns/{}/events"),
        ("POST", "/v1/turns/{}/abort"),
    ):
        foreign = await ask(method, path.format(turn), theirs)
        unknown = await ask(method, path.format("unknown"), theirs)
        assert_problem(foreign, 404, "not_found")
        assert foreign.text.replace(turn, "ID") == unknown.text.replace("unknown", "ID")
    assert guarded.temporal.signalled == []
    assert (await ask("GET", f"/v1/turns/{turn}", own)).json()["state"] == "running"
    again = await guarded.http.post(STARTS, json={"message": "a"}, headers={**theirs, "Idempotency-Key": "k"})
    assert again.json()["turn"] != turn


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        (None, "anything.example", 200),
        (None, "", 200),
        ("api.example, [2001:db8::1]", "api.example", 200),
        ("api.example, [2001:db8::1]", "API.example:8443", 200),
        ("api.example, [2001:db8::1]", "[2001:DB8::1]:80", 200),
        ("api.example", "127.0.0.1:8000", 403),
        ("api.example", "api.example.evil.test", 403),
        ("api.example", "apixexample", 403),
        ("api.example", "api.example:80:80", 403),
        ("api.example", "", 403),
    ],
)
async def test_host_is_checked_only_where_hosts_are_named(
    tmp_path: Path, allowed: str | None, host: str, status: int
) -> None:
    values = {} if allowed is None else {"allowed_hosts": allowed}
    async with api_over(tmp_path, settings=token_settings(**values)) as api:
        del api.http.headers[HEADER]
        answer = await api.http.get("/v1/effects", headers={**bearer(token()), "Host": host})

    if status == 403:
        assert_problem(answer, 403, "forbidden_host")
    else:
        assert answer.status_code == status


async def test_probes_need_no_token(guarded: Api) -> None:
    assert (await guarded.http.get("/healthz")).status_code == 200
    assert (await guarded.http.get("/readyz")).status_code == 200
