"""Scripts and looks that tests of whole turns share."""

import itertools

from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart

from activities.model import history
from tests.oracle import truth_of
from tests.stack import SandboxProcess, Turns, call, eventually, say
from turnsaga.models import StepRef
from turnsaga.store import Started

_ids = itertools.count(1)
THINKING = say(*["thinking "] * 400, delay_ms=50)


def charge(invoice: str, amount: str = "10.00") -> dict[str, object]:
    return call("charge_card", customer="cus_1", amount=amount, currency="EUR", invoice=invoice)


def invoice() -> str:
    return f"INV-O{next(_ids)}"


def record_name() -> str:
    return f"RO{next(_ids)}"


async def charges(sandbox: SandboxProcess, name: str) -> int:
    found = await truth_of(sandbox)
    return sum(true.applied for true in found.effects if true.identity == name and true.system == "pay")


async def all_are(turns: Turns, started: Started, states: list[str]) -> None:
    async def there() -> bool:
        return [effect.state.value for effect in (await turns.view(started)).effects] == states

    await eventually(there, what=f"states {states}")


async def must_have_valid_history(turns: Turns, conversation: str, *, turns_before: int, calls: int) -> None:
    """Fail unless the next turn's model is given whole turns, in which each call has one result, at once."""
    following = await turns.start(say("ok"), conversation=conversation)
    await turns.settled(following)
    step = StepRef(tenant=following.ref.tenant, turn=following.ref.turn, step=1)
    told = (await turns.store.step_context(step)).history
    waiting: list[str] = []
    asked: list[str] = []
    prompts = 0
    for message in history(told, ""):
        if isinstance(message, ModelResponse):
            assert waiting == [], "a reply before the results of the one before"
            waiting = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
            asked += waiting
        else:
            results = [part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)]
            assert results == waiting, "results are not those of the reply before, in its order"
            waiting = []
            prompts += sum(
                isinstance(part, UserPromptPart) and str(part.content).startswith("{")
                for part in message.parts
            )
    assert waiting == []
    assert len(set(asked)) == len(asked) == calls
    assert len(told) == prompts == turns_before + 1
