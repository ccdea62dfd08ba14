"""How Temporal is reached: its own environment variables and profiles, with a default for development.

Source: https://docs.temporal.io/develop/environment-configuration.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from temporalio.client import ClientConnectConfig
from temporalio.envconfig import ClientConfig

from turnsaga.errors import EngineMisconfigured

__all__ = ["connection_fault", "temporal_config"]

_FILE: Final = "TEMPORAL_CONFIG_FILE"
# What waiting doesn't mend, by what the SDK's error says of it. The first that fits counts.
_FAULTS: Final[Mapping[str, tuple[str, str]]] = {
    "NotValidForName": (
        "TEMPORAL_TLS_SERVER_NAME",
        "the server's certificate is for another name; give one of those that it is for",
    ),
    "InvalidCertificate": (
        "TEMPORAL_TLS_SERVER_CA_CERT_PATH or …_DATA",
        "the server's certificate isn't accepted; give the authority that issued it",
    ),
    "NoCertificatesPresented": (
        "TEMPORAL_TLS_CLIENT_CERT_PATH or …_DATA",
        "there is no certificate in it; give one in PEM",
    ),
    "PrivateKeyParseError": (
        "TEMPORAL_TLS_CLIENT_KEY_PATH or …_DATA",
        "there is no private key in it; give one in PEM",
    ),
    "InvalidContentType": ("TEMPORAL_TLS", "the server doesn't speak TLS; leave TLS and API key out"),
    "code: Unauthenticated": ("TEMPORAL_API_KEY", "the server doesn't accept who we say we are"),
    "code: PermissionDenied": ("TEMPORAL_API_KEY", "the server doesn't let this identity in"),
}


def temporal_config() -> ClientConnectConfig:
    """Return how to reach Temporal: its environment variables and profile, or this machine's default.

    Add to it by key before you connect, ``config["plugins"] = [...]``: mypy refuses a keyword beside the
    unpacked dictionary, which may hold the same one.

    Raises:
        EngineMisconfigured: a file or a variable can't be used; says which.
    """
    named = os.environ.get(_FILE)
    # The SDK goes on without one that isn't there, and would reach another Temporal than was meant.
    if named and not Path(named).is_file():
        raise EngineMisconfigured(_FILE, f"there is no file {named!r}")
    found: Any = {"target_host": "127.0.0.1:7233", "namespace": "default"}
    try:
        found.update(ClientConfig.load_client_connect_config())
    except OSError as error:
        raise EngineMisconfigured(
            "its TLS settings", f"{error.filename!r} can't be read ({error.strerror})"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise EngineMisconfigured(_source(named, str(error)), _brief(str(error))) from error
    config: ClientConnectConfig = found
    return config


def connection_fault(error: Exception) -> EngineMisconfigured | None:
    """Return what has to change before Temporal can be reached; None for what may pass by waiting.

    A server that wants TLS, or a certificate of ours, and gets none looks like one that is away.
    """
    said = str(error)
    for sign, (where, reason) in _FAULTS.items():
        if sign in said:
            return EngineMisconfigured(where, reason)
    return None


def _source(named: str | None, said: str) -> str:
    if named:
        return f"{_FILE}={named!r}"
    if "TOML" in said:
        return "temporal.toml in this user's configuration folder"
    return "the environment"


def _brief(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]}: {lines[-1]}"
