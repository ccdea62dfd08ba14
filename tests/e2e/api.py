"""The development stack as somebody uses it: over HTTP alone."""

import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from tests.dev.driver import Driver, running
from tests.stack import eventually
from turnsaga.models import EffectView, TurnEvent
from turnsaga.testing import Truth, differences

_ids = itertools.count(1)
SYSTEMS = {
    "charge_card": "pay",
    "create_record": "crm",
    "update_record": "crm",
    "send_invoice_email": "mail",
    "post_message": "hook",
}
AT_ONCE = {"charge_card": "immediate", "update_record": "immediate"}
MONEY = {"customer": "cus_1", "amount": "10.00", "currency": "EUR"}
LETTER = {"to": "ada@example.com", "amount": "10.00"}


@dataclass
class Stack:
    """A running development stack, driven over HTTP."""

    driver: Driver
    web: httpx.AsyncClient
    sandbox: httpx.AsyncClient
    temporal: str
    pids: dict[str, Any]
    env: dict[str, str]

    async def start(
        self, *replies: Mapping[str, Any], policies: Mapping[str, str] | None = None, **body: Any
    ) -> str:
        """Start a turn; what can be undone commits at once, where ``policies`` doesn't say otherwise."""
        started = await self.started(*replies, policies=policies, **body)
        assert started.status_code == 201, started.text
        return str(started.json()["turn"])

    async def started(
        self,
        *replies: Mapping[str, Any],
        policies: Mapping[str, str] | None = None,
        conversation: str | None = None,
        **body: Any,
    ) -> httpx.Response:
        """Return the answer to such a start, of a new conversation or of this one."""
        number = next(_ids)
        return await self.web.post(
            f"/v1/conversations/{conversation or f'e2e-{number}'}/turns",
            json={
                "message": json.dumps({"script": list(replies)}),
                "policies": {**AT_ONCE, **(policies or {})},
                **body,
            },
            headers={"Idempotency-Key": f"k{number}"},
        )

    async def view(self, turn: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.web.get(f"/v1/turns/{turn}")).json()
        return found

    async def reaches(self, turn: str, state: str) -> None:
        async def there() -> bool:
            return any(effect["state"] == state for effect in (await self.view(turn))["effects"])

        await eventually(there, what=f"an effect {state}")

    async def held(self, turn: str, why: str = "confirmation") -> dict[str, Any]:
        """Return the turn's effect that is held for this, once there is one."""

        async def there() -> dict[str, Any] | None:
            effects: list[dict[str, Any]] = (await self.view(turn))["effects"]
            return next((effect for effect in effects if effect["held_for"] == why), None)

        found: dict[str, Any] = await eventually(there, within=30, what=f"an effect held for {why}")
        return found

    async def settled(self, turn: str, *, within: float = 60) -> dict[str, Any]:
        async def ended() -> dict[str, Any] | None:
            try:
                found = await self.view(turn)
            except httpx.TransportError:
                return None
            return found if found.get("settlement") else None

        result: dict[str, Any] = await eventually(ended, within=within, what=f"the end of {turn}")
        return result

    async def applied(self, system: str) -> dict[str, int]:
        """Return how often each business identity was applied in a system; one that never was is left out."""
        truth = (await self.sandbox.get("/_truth")).json()
        return {
            effect["identity"]: effect["applied"]
            for effect in truth["effects"]
            if effect["system"] == system and effect["applied"]
        }

    async def kill(self, part: str) -> None:
        """SIGKILL a part, and return once another process has its place; it may not serve yet."""
        pid = self.pids[part]
        os.kill(pid if isinstance(pid, int) else pid[0], signal.SIGKILL)
        restarted = await self.driver.restarted(10)
        assert restarted.restarted == part
        self.pids[part] = restarted.pid if isinstance(pid, int) else [restarted.pid, *pid[1:]]

    async def serves(self) -> None:
        """Return once the web tier answers, and reaches the ledger and Temporal."""

        async def ready() -> bool:
            try:
                return (await self.web.get("/readyz")).is_success
            except httpx.TransportError:
                return False

        await eventually(ready, within=60, what="the web tier")

    async def knobs(self, system: str, **knobs: Any) -> None:
        (await self.sandbox.put(f"/_control/{system}", json=knobs)).raise_for_status()

    async def events(self, turn: str, after: int = 0, most: int | None = None) -> list[TurnEvent]:
        """Read a turn's events until they end, or until there are so many."""
        found: list[TurnEvent] = []
        number, kind = 0, ""
        headers = {"Last-Event-ID": str(after)} if after else {}
        async with self.web.stream("GET", f"/v1/turns/{turn}/events", headers=headers) as stream:
            async for line in stream.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    number = int(value)
                elif name == "event":
                    kind = value
                elif name == "data":
                    data = json.loads(value)
                    found.append(
                        TurnEvent(turn=turn, number=number, kind=kind, data=data, at=datetime.now(UTC))
                    )
                    if most is not None and len(found) >= most:
                        break
        return found

    async def must_agree(self, *views: dict[str, Any]) -> None:
        truth = Truth.model_validate((await self.sandbox.get("/_truth")).json())
        effects = [EffectView.model_validate(effect) for view in views for effect in view["effects"]]
        mine = {(SYSTEMS[effect.tool], effect.identity) for effect in effects}
        own = Truth(effects=tuple(e for e in truth.effects if (e.system, e.identity) in mine))
        assert differences(effects, own, SYSTEMS) == ()
        assert all(true.applied <= 1 for true in own.effects)


@asynccontextmanager
async def stack_at(
    base: int, data: Path, *more: str, env: dict[str, str] | None = None
) -> AsyncIterator[Stack]:
    """Run the stack on these ports over this data, with more options and settings."""
    argv = ("-m", "workers", "dev", "--port-base", str(base), "--data", str(data), *more)
    async with running(*argv, env=env) as driver:
        ready = json.loads(await driver.line(60))
        async with (
            httpx.AsyncClient(
                base_url=ready["web"], headers={"X-Turnsaga-User": "acme/ada"}, timeout=30
            ) as web,
            httpx.AsyncClient(base_url=ready["sandbox"], timeout=10) as sandbox,
        ):
            yield Stack(driver, web, sandbox, ready["temporal"], ready["pids"], ready["env"])
