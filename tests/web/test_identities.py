"""Which identity settings choose, and which settings are refused with what to change."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.web.issuer import AUDIENCE, ISSUER, JWKS, RSA, key_set
from tests.web.served import settings_of
from web.identities import choose_identity
from web.identity import DevelopmentIdentity, IdentityRefused
from web.settings import WebSettings
from web.tokens import TokenIdentity

URL = "https://issuer.test/keys"
KEYS = json.dumps(key_set("r"))
PRIVATE = {**RSAAlgorithm.to_jwk(RSA, as_dict=True), "kid": "p"}
SHORT = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
P384 = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True)
WEAK = {"kty": "oct", "k": "c2hvcnQ", "kid": "w"}


def with_tokens(**values: Any) -> WebSettings:
    """Return settings of bearer tokens; None leaves one out."""
    given = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, **values}
    return settings_of(**{name: value for name, value in given.items() if value is not None})


def a_set(*members: Any) -> str:
    return json.dumps({"keys": members})


def test_development_identity_is_taken_where_nothing_is_said_of_tokens() -> None:
    identity = choose_identity(settings_of())

    assert isinstance(identity, DevelopmentIdentity)
    assert not identity.roles_bind


@pytest.mark.parametrize("env", ["development", "production"])
@pytest.mark.parametrize("keys", [{"jwt_keys": KEYS}, {"jwt_jwks_url": URL}, {"jwt_jwks_url": "http://i/k"}])
def test_tokens_are_taken_on_every_address(env: str, keys: dict[str, str]) -> None:
    identity = choose_identity(with_tokens(env=env, web_host="0.0.0.0", **keys))

    assert isinstance(identity, TokenIdentity)
    assert identity.roles_bind


def test_key_set_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(KEYS)

    assert isinstance(choose_identity(with_tokens(jwt_keys=str(file))), TokenIdentity)


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no audience": ({"jwt_audience": None, "jwt_keys": KEYS}, ("TURNSAGA_JWT_AUDIENCE is missing",)),
    "no issuer": ({"jwt_issuer": None, "jwt_keys": KEYS}, ("TURNSAGA_JWT_ISSUER is missing",)),
    "a claim alone": (
        {"jwt_issuer": None, "jwt_audience": None, "jwt_claim_role": "r"},
        ("TURNSAGA_JWT_ISSUER is missing",),
    ),
    "no keys": ({}, ("TURNSAGA_JWT_KEYS", "TURNSAGA_JWT_JWKS_URL", "missing")),
    "two sources": ({"jwt_keys": KEYS, "jwt_jwks_url": URL}, ("both", "keep one")),
    "unknown algorithm": ({"jwt_keys": KEYS, "jwt_algorithms": "RS256,RS1"}, ("'RS1'", "ES256")),
    "lower case": ({"jwt_keys": KEYS, "jwt_algorithms": "rs256"}, ("'rs256'",)),
    "none": ({"jwt_keys": KEYS, "jwt_algorithms": "RS256,none"}, ("'none'",)),
    "HMAC without secret": ({"jwt_keys": KEYS, "jwt_algorithms": "RS256,HS256"}, ("HS*", "'oct'")),
    "HMAC by URL": ({"jwt_jwks_url": URL, "jwt_algorithms": "HS512"}, ("HS*", "TURNSAGA_JWT_JWKS_URL")),
    "file of the system": ({"jwt_jwks_url": "file:///etc/passwd"}, ("TURNSAGA_JWT_JWKS_URL", "http")),
    "no host": ({"jwt_jwks_url": "https:///keys"}, ("TURNSAGA_JWT_JWKS_URL",)),
    "odd port": ({"jwt_jwks_url": "https://h:port/keys"}, ("TURNSAGA_JWT_JWKS_URL",)),
    "user in it": ({"jwt_jwks_url": "https://u:secret@h/keys"}, ("TURNSAGA_JWT_JWKS_URL",)),
    "no file": ({"jwt_keys": "/nowhere/secret"}, ("neither", "No such file")),
    "folder": ({"jwt_keys": "/"}, ("neither", "Is a directory")),
    "empty": ({"jwt_keys": ""}, ("TURNSAGA_JWT_KEYS",)),
    "not JSON": ({"jwt_keys": '{"keys": secret'}, ("TURNSAGA_JWT_KEYS isn't JSON",)),
    "not a set": ({"jwt_keys": json.dumps(JWKS["r"])}, ("isn't a JWK set",)),
    "empty set": ({"jwt_keys": a_set()}, ("isn't a JWK set",)),
    "text for a key": ({"jwt_keys": a_set("secret")}, ("key 1 of TURNSAGA_JWT_KEYS",)),
    "strange key": ({"jwt_keys": a_set(JWKS["r"], {"kty": "secret"})}, ("key 2 of TURNSAGA_JWT_KEYS",)),
    "number for a key": ({"jwt_keys": a_set({**JWKS["r"], "n": 1})}, ("key 1",)),
    "odd kid": ({"jwt_keys": a_set({**JWKS["r"], "kid": 1})}, ("key 1", "kid")),
    "private key": ({"jwt_keys": a_set(PRIVATE)}, ("key 1", "private")),
    "short key": ({"jwt_keys": a_set(SHORT)}, ("key 1", "too short")),
    "short secret": (
        {"jwt_keys": a_set(WEAK, JWKS["r"]), "jwt_algorithms": "HS256"},
        ("key 1", "too short"),
    ),
    "kid twice": ({"jwt_keys": a_set(JWKS["r"], {**JWKS["e"], "kid": "r"})}, ("two keys of one kid",)),
    "no key for it": ({"jwt_keys": a_set(P384)}, ("no signature key", "ES256")),
    "no signature key": ({"jwt_keys": a_set({**JWKS["r"], "use": "enc"})}, ("no signature key",)),
    "host with port": ({"jwt_keys": KEYS, "allowed_hosts": "a.example:80"}, ("'a.example:80'",)),
    "host with scheme": ({"jwt_keys": KEYS, "allowed_hosts": "https://a"}, ("'https://a'",)),
    "hosts without tokens": (
        {"jwt_issuer": None, "jwt_audience": None, "allowed_hosts": "a.example"},
        ("TURNSAGA_ALLOWED_HOSTS", "bearer tokens"),
    ),
}


@pytest.mark.parametrize(("values", "said"), REFUSED.values(), ids=REFUSED)
def test_settings_that_contradict_each_other_are_refused(
    values: dict[str, Any], said: tuple[str, ...]
) -> None:
    with pytest.raises(IdentityRefused) as refused:
        choose_identity(with_tokens(**values))

    line = str(refused.value)
    assert [word for word in said if word not in line] == []
    assert "secret" not in line
    assert "\n" not in line
