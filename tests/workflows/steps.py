"""Scripts and looks that tests of whole turns share."""

import itertools

from tests.stack import SandboxProcess, Turns, call, eventually, say
from turnsaga.store import Started
from turnsaga.testing import Truth

_ids = itertools.count(1)
THINKING = say(*["thinking "] * 400, delay_ms=50)


def charge(invoice: str, amount: str = "10.00") -> dict[str, object]:
    return call("charge_card", customer="cus_1", amount=amount, currency="EUR", invoice=invoice)


def invoice() -> str:
    return f"INV-O{next(_ids)}"


def record_name() -> str:
    return f"RO{next(_ids)}"


async def truth_of(sandbox: SandboxProcess) -> Truth:
    return Truth.model_validate(await sandbox.truth())


async def charges(sandbox: SandboxProcess, name: str) -> int:
    found = await truth_of(sandbox)
    return sum(true.applied for true in found.effects if true.identity == name and true.system == "pay")


async def all_are(turns: Turns, started: Started, states: list[str]) -> None:
    async def there() -> bool:
        return [effect.state.value for effect in (await turns.view(started)).effects] == states

    await eventually(there, what=f"states {states}")
