"""An issuer of tokens for tests: its keys, what it signs, and a server that shows its key set."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER: Final = "https://issuer.test/"
AUDIENCE: Final = "turnsaga"
RSA: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC: Final = ec.generate_private_key(ec.SECP256R1())
ED: Final = ed25519.Ed25519PrivateKey.generate()
SHARED: Final = "c2hhcmVkLXNlY3JldC1vZi00OC1ieXRlcy1mb3ItdGhlLXRlc3RzLW9mLUhTMjU2"

JWKS: Final[Mapping[str, dict[str, Any]]] = {
    "r": {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "r", "use": "sig"},
    "e": {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "e"},
    "d": {**OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True), "kid": "d"},
    "r2": {**RSAAlgorithm.to_jwk(OTHER_RSA.public_key(), as_dict=True), "kid": "r2"},
    "h": {"kty": "oct", "k": SHARED, "kid": "h", "alg": "HS256"},
}
"""Public keys by their kid, and one shared secret."""


def key_set(*names: str) -> dict[str, Any]:
    """Return the set of these keys."""
    return {"keys": [JWKS[name] for name in names]}


def claims(**changes: Any) -> dict[str, Any]:
    """Return what a good token says, with changes; None leaves a claim out."""
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "tenant": "acme", "iat": now}
    # Longer than any run of the tests: some tokens are made as their module is read.
    usual["exp"] = now + 86_400
    said: dict[str, Any] = {**usual, **changes}
    return {name: value for name, value in said.items() if value is not None}


def token(
    key: Any = RSA, algorithm: str = "RS256", kid: str | None = "r", *, said: Any = None, **changes: Any
) -> str:
    """Return a signed token; without arguments a good one of acme's Ada."""
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(said or claims(**changes), key, algorithm, headers)


def bearer(of: str) -> dict[str, str]:
    """Return the header that carries a token."""
    return {"Authorization": f"Bearer {of}"}


@dataclass
class KeyServer:
    """A server of a key set on loopback. ``body`` is what it answers, ``hold`` keeps it from answering."""

    body: bytes
    status: int = 200
    asked: int = 0
    hold: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def __post_init__(self) -> None:
        self.hold.set()

    @property
    def url(self) -> str:
        """Where the set is."""
        return f"http://127.0.0.1:{self.port}/keys"

    def show(self, *names: str) -> None:
        """Answer with these keys from now on."""
        self.body = json.dumps(key_set(*names)).encode()

    @contextmanager
    def up(self) -> Iterator[None]:
        """Listen; on the port it had before, if it was up before."""
        server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self._answer))
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            self.hold.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def _answer(self) -> tuple[int, bytes]:
        self.asked += 1
        assert self.hold.wait(10)
        return self.status, self.body


def _handler(answer: Callable[[], tuple[int, bytes]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's own name
            pass

    return Handler
