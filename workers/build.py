"""The composition root: which workflows, tools and settings make up our deployment."""

import asyncio
from datetime import timedelta
from typing import Final

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.checks import vendor_checks
from activities.deployment import deployment_tools
from activities.model import ModelActivities
from activities.settings import VendorSettings
from settings.reading import SettingsRefused, read_settings
from turnsaga.connecting import connection_fault, temporal_config
from turnsaga.converting import data_converter
from turnsaga.deployment import Deployment
from turnsaga.errors import InvalidRequest
from turnsaga.plugin import TurnSagaPlugin
from turnsaga.recovery import RecoveryActivities, ensure_sweeper
from turnsaga.starting import ensure_search_attributes
from turnsaga.store import SqlStore
from turnsaga.tools import Tools
from web.settings import WebSettings
from workers.checks import setting_checks
from workers.settings import WorkerSettings
from workflows.agent_turn import AgentTurn

__all__ = ["app", "build_worker", "connect", "prepare_engine"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
# As long as an attempt's worker counts as alive without a heartbeat.
_CACHED_FOR: Final = timedelta(seconds=5)
_PAUSE_S: Final = 1.0


def app() -> Deployment:
    """Return our deployment as the command ``turnsaga`` sees it, by this process's environment.

    Raises:
        InvalidRequest: a setting can't be used.
    """
    try:
        settings, vendors = read_settings(WorkerSettings), read_settings(VendorSettings)
        web = read_settings(WebSettings)
    except SettingsRefused as error:
        raise InvalidRequest(error.setting, str(error).removeprefix(f"{error.setting}: ")) from None
    return Deployment(
        open_tools=lambda: deployment_tools(vendors),
        database=settings.database.get_secret_value(),
        task_queue=settings.task_queue,
        env=settings.env,
        checks=(*setting_checks(settings, vendors, web), *vendor_checks(vendors)),
    )


async def connect() -> Client:
    """Connect to Temporal, however long that takes: a worker without it has nothing to do but wait.

    Raises:
        EngineMisconfigured: waiting doesn't help.
    """
    config = temporal_config()
    # The plugin belongs to the worker, which has the tools; on both it would apply twice.
    config["data_converter"] = data_converter
    while True:
        try:
            return await Client.connect(**config)
        except RuntimeError as error:
            fault = connection_fault(error)
            if fault is not None:
                raise fault from error
            # What went wrong innermost is said last.
            _log.warning("temporal.unavailable", address=config.get("target_host"), reason=str(error)[-200:])
            await asyncio.sleep(_PAUSE_S)


def build_worker(client: Client, store: SqlStore, settings: WorkerSettings, *, tools: Tools) -> Worker:
    """Return a worker of our deployment over these tools."""
    recovery = RecoveryActivities(
        store, client, task_queue=settings.task_queue, adopt=settings.env == "development"
    )
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[AgentTurn],
        activities=[*ModelActivities(store, tools).all(), *recovery.all()],
        plugins=[TurnSagaPlugin(tools, store)],
        graceful_shutdown_timeout=timedelta(seconds=settings.drain_s),
        max_cached_workflows=settings.max_cached_workflows,
        # Cancels reach an activity with its heartbeats; the default throttle would hold them for seconds.
        max_heartbeat_throttle_interval=timedelta(milliseconds=100),
        # So long a run waits for the worker that has it cached, which may be dead, before any takes it.
        sticky_queue_schedule_to_start_timeout=_CACHED_FOR,
    )


async def prepare_engine(client: Client, settings: WorkerSettings) -> None:
    """Register what turns need in Temporal: search attributes, and the sweeper's schedule."""
    await ensure_search_attributes(client)
    await ensure_sweeper(client, task_queue=settings.task_queue, every=settings.sweep_every)
