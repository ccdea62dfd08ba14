"""A turn that has come half way when something ends its run, and what ends it."""

import uuid
from dataclasses import dataclass
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus

from tests.oracle import truth_of
from tests.stack import WHO, SandboxProcess, Turns, call, eventually, reply, say
from tests.workflows.steps import THINKING, charge, invoice, record_name
from turnsaga.ledger import State
from turnsaga.models import TurnView
from turnsaga.recovery import RecoveryActivities
from turnsaga.store import Started

POLICIES = {"send_invoice_email": "immediate!", "post_message": "confirmed"}


@dataclass(frozen=True)
class Halfway:
    """A record, a mail and a charge are done, a second charge is on the wire, and a message is held."""

    started: Started
    record: str
    letter: str
    first: str
    second: str
    message: str

    @property
    def undone(self) -> dict[str, str]:
        """Return the states of its effects once it is settled: what can be undone is, the mail stands."""
        return {
            f"create_record ticket/{self.record}": "compensated",
            f"send_invoice_email {self.letter}": "standing",
            f"charge_card {self.first}": "compensated",
            f"charge_card {self.second}": "compensated",
            f"post_message ops/{self.message}": "released",
        }

    @property
    def identities(self) -> set[str]:
        return {f"ticket/{self.record}", self.letter, self.first, self.second, f"ops/{self.message}"}


async def halfway(
    turns: Turns, sandbox: SandboxProcess, *, answers_after_ms: int = 2000, **options: Any
) -> Halfway:
    """Start such a turn, and return it when its second charge has arrived and isn't answered."""
    story = await begin(turns, sandbox, answers_after_ms=answers_after_ms, **options)
    await on_the_wire(turns, sandbox, story)
    return story


async def begin(
    turns: Turns, sandbox: SandboxProcess, *, answers_after_ms: int = 2000, **options: Any
) -> Halfway:
    """Start such a turn."""
    record, letter, first, second, message = (
        record_name(), invoice(), invoice(), invoice(), f"about {invoice()}"
    )  # fmt: skip
    await sandbox.knobs("pay", latency_ms=answers_after_ms, only={"op": "apply", "identity": second})
    started = await turns.start(
        reply(
            call("create_record", kind="ticket", id=record),
            call("send_invoice_email", to="ada@example.com", invoice=letter, amount="10.00"),
        ),
        reply(charge(first)),
        reply(charge(second), call("post_message", channel="ops", text=message)),
        THINKING,
        policies=POLICIES,
        **options,
    )
    return Halfway(started, record, letter, first, second, message)


async def on_the_wire(turns: Turns, sandbox: SandboxProcess, story: Halfway) -> None:
    """Wait until the turn has come half way."""

    async def there() -> bool:
        states = await turns.states(story.started)
        arrived = any(
            each["op"] == "apply" and each["identity"] == story.second and not each["answered"]
            for each in (await sandbox.truth())["calls"]
        )
        return arrived and states == {
            f"create_record ticket/{story.record}": "committed",
            f"send_invoice_email {story.letter}": "committed",
            f"charge_card {story.first}": "committed",
            f"charge_card {story.second}": "committing",
            f"post_message ops/{story.message}": "prepared",
        }

    await eventually(there, what="a turn that has come half way")


async def happened(sandbox: SandboxProcess, story: Halfway) -> dict[str, tuple[int, int]]:
    """Return how often each of the turn's effects was applied and undone."""
    found = (await truth_of(sandbox)).effects
    return {true.identity: (true.applied, true.undone) for true in found if true.identity in story.identities}


async def sends(sandbox: SandboxProcess, identity: str) -> int:
    """Return how often the vendors were asked to apply this, under whatever key."""
    calls = (await sandbox.truth())["calls"]
    return sum((each["op"], each["identity"]) == ("apply", identity) for each in calls)


def once_and_undone(story: Halfway) -> dict[str, tuple[int, int]]:
    """Return what must have happened of a turn that was settled."""
    return {
        f"ticket/{story.record}": (1, 1),
        story.letter: (1, 0),
        story.first: (1, 1),
        story.second: (1, 1),
    }


async def order_of_undo(turns: Turns, started: Started) -> list[str]:
    """Return the identities of what was undone, in the order in which it was."""
    events = await turns.events(started)
    return [str(event.data["identity"]) for event in events if event.kind == "tool_compensated"]


async def undoing(turns: Turns, started: Started, charged: str) -> None:
    """Wait until the undo of that charge is under way."""
    effect = (await turns.effects(started))[f"charge_card {charged}"].effect

    async def there() -> bool:
        view = await turns.view(started)
        return any((one.effect, one.state) == (effect, State.COMPENSATING) for one in view.effects)

    await eventually(there, within=30, what=f"the undo of {charged}")


async def text_of(turns: Turns, started: Started) -> str:
    """Return the text of a turn as its reader is left with it: what a restart makes void is dropped."""
    steps: dict[int, str] = {}
    page = await turns.store.event_page(turns.who, started.ref.turn, after=0)
    for event in page.events:
        if event.kind == "step_restarted":
            steps.pop(event.data["step"], None)
        elif event.kind == "text_delta":
            steps[event.data["step"]] = steps.get(event.data["step"], "") + event.data["text"]
    return "".join(steps[step] for step in sorted(steps))


def sweeper_of(turns: Turns) -> RecoveryActivities:
    return RecoveryActivities(turns.store, turns.client, task_queue=turns.task_queue, adopt=True)


async def swept(turns: Turns, *, did: str = "recovered") -> None:
    """Sweep until a sweep has done this."""
    sweeper = sweeper_of(turns)

    async def acted() -> bool:
        return bool(getattr(await sweeper.sweep(), did))

    await eventually(acted, what=f"a sweep that has {did}")


async def closed(turns: Turns, started: Started) -> WorkflowExecutionStatus:
    """Return how the turn's latest run was closed, once it is."""

    async def status() -> WorkflowExecutionStatus | None:
        found = (await turns.handle(started).describe()).status
        return None if found is WorkflowExecutionStatus.RUNNING else found

    result: WorkflowExecutionStatus = await eventually(status, what="the end of the run")
    return result


async def ended(turns: Turns, name: str, *, stopped: bool) -> tuple[Started, TurnView]:
    """Return a turn with one charge that has ended, and its run with it."""
    started = await turns.start(reply(charge(name)), THINKING if stopped else say("Done."))
    if stopped:
        await turns.reaches(started, "committed", "charge_card")
        await turns.turns.abort(WHO, started.ref.turn)
    view = await turns.settled(started)
    await closed(turns, started)
    return started, view


async def reset_before(turns: Turns, started: Started, activity: str) -> str:
    """Reset the turn to the task that asked for this activity first; its signals are applied again."""
    history = await turns.handle(started).fetch_history()
    asked = next(
        event.activity_task_scheduled_event_attributes.workflow_task_completed_event_id
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == activity
    )
    answer = await turns.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=turns.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=started.ref.turn),
            reason="an operator wants it to go on from here",
            workflow_task_finish_event_id=asked,
            request_id=str(uuid.uuid4()),
        )
    )
    return answer.run_id
