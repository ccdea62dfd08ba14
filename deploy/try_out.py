"""Makes what a try-out of docker-compose.yml needs, and prints a bearer token for it.

python deploy/try_out.py secrets                          passwords, keys and a token of acme's Ada
python deploy/try_out.py secrets --user acme/bob/operator    a token of somebody else

It plays the issuer that .env names. Files that are there stay as they are: a database keeps the password that
it was set up with. Not for production, whose tokens come from an issuer of people's identities.
"""

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from jwt.algorithms import ECAlgorithm

__all__ = ["main"]

ISSUER: Final = "https://try-out.invalid/"
AUDIENCE: Final = "turnsaga"
_KEY: Final = "try_out_issuer.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files that are missing, print a token; return the exit status."""
    parser = argparse.ArgumentParser(description="make the secrets of a try-out, and print a bearer token")
    parser.add_argument("folder", type=Path, help="where the secrets are, ./secrets for docker-compose.yml")
    parser.add_argument("--user", default="acme/ada", help="tenant/user or tenant/user/role")
    parser.add_argument("--hours", type=float, default=12, help="how long the token is good")
    given = parser.parse_args(arguments)
    tenant, _, who = str(given.user).partition("/")
    user, _, role = who.partition("/")
    if not tenant or not user:
        sys.stderr.write(f"try_out: --user {given.user!r} isn't tenant/user or tenant/user/role\n")
        return 2
    key = _prepare(given.folder)
    now = int(time.time())
    said = {"iss": ISSUER, "aud": AUDIENCE, "tenant": tenant, "sub": user, "iat": now}
    said |= {"exp": now + int(given.hours * 3600), **({"role": role} if role else {})}
    sys.stdout.write(jwt.encode(said, jwt.PyJWK(key), "ES256", {"kid": key["kid"]}) + "\n")
    return 0


def _prepare(folder: Path) -> dict[str, Any]:
    """Write what is missing, and return the issuer's private key."""
    # Containers read the files as users of their own, so the files are open and the folder is closed.
    folder.mkdir(mode=0o700, exist_ok=True)
    password = _kept(folder / "ledger_db_password", lambda: secrets.token_urlsafe(24))
    _kept(folder / "temporal_db_password", lambda: secrets.token_urlsafe(24))
    _kept(folder / "turnsaga_database", lambda: f"postgresql://turnsaga:{password}@ledger-db:5432/turnsaga")
    _kept(folder / "turnsaga_pay_key", lambda: "sk_test_sandbox")
    _kept(folder / "turnsaga_crm_token", lambda: "crm_sandbox")
    _kept(folder / "turnsaga_hook_token", lambda: "hook_sandbox")
    key: dict[str, Any] = json.loads(_kept(folder / _KEY, _new_key, mode=0o600))
    public = {name: value for name, value in key.items() if name not in {"d", "key_ops"}}
    _kept(folder / "turnsaga_jwt_keys", lambda: json.dumps({"keys": [public]}))
    return key


def _new_key() -> str:
    key = ECAlgorithm.to_jwk(generate_private_key(SECP256R1()), as_dict=True)
    return json.dumps({**key, "kid": secrets.token_hex(4), "alg": "ES256", "use": "sig"})


def _kept(file: Path, make: Callable[[], str], *, mode: int = 0o444) -> str:
    """Return what the file holds, after writing it if it isn't there."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(make(), encoding="utf-8")
        file.chmod(mode)
        sys.stderr.write(f"try_out: made {file}\n")
    return file.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
