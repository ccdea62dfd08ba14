"""How Temporal is reached: its own environment variables and profiles, with a default for development."""

from typing import Any

from temporalio.client import ClientConnectConfig
from temporalio.envconfig import ClientConfig

__all__ = ["temporal_config"]


def temporal_config() -> ClientConnectConfig:
    """Return how to reach Temporal: its environment variables and profile, or this machine's default.

    Raises:
        RuntimeError: Temporal's own configuration can't be read.
    """
    found: Any = {"target_host": "127.0.0.1:7233", "namespace": "default"}
    found.update(ClientConfig.load_client_connect_config())
    config: ClientConnectConfig = found
    return config
