"""One turn on each side: begun until its ending can come, ended, and waited for."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from temporalio.client import WorkflowFailureError, WorkflowHandle

from benchmarks.leaks.bare import BilledTurn
from benchmarks.leaks.endings import Bill, Ran
from benchmarks.leaks.rig import LeakRig
from tests.stack import call, reply, say
from turnsaga.errors import DecisionRefused
from turnsaga.models import EffectView
from turnsaga.store import Started

__all__ = ["ANSWER_WITHIN_S", "BareTurn", "OurTurn", "Turn"]

ANSWER_WITHIN_S: Final = 2
"""How long the user is asked where nobody answers."""

_MAIL: Final = "send_invoice_email"
_DEADLINE_S: Final = 6
_DELAY_S: Final = 20
_DELAY_OF_A_KILL_S: Final = 60
_DELAY_TO_PASS_S: Final = 3
_HELD_S: Final = 0.5
"""How long a mail is held at least: one that is only said to be goes out in this time."""

_LONG: Final = say(*["thinking "] * 2400, delay_ms=50)
_GLANCE_S: Final = 0.05
_PATIENCE_S: Final = 120


class Turn(Protocol):
    """One turn of the matrix."""

    async def begin(self) -> None:
        """Start it, and return once the mail is in it: held, or sent."""
        ...

    async def end(self) -> None:
        """Do what ends it, if that is somebody's act."""
        ...

    async def settle(self) -> Ran:
        """Wait until it has ended."""
        ...


@dataclass
class OurTurn:
    """A turnsaga turn over the deployment's tools."""

    rig: LeakRig
    bill: Bill
    _made: Started | None = field(default=None, init=False)
    _started: Started | None = field(default=None, init=False)

    async def begin(self) -> None:
        """Start it, and return once everything is held that is to be."""
        bill = self.bill
        if bill.ending.name == "stale":
            await self._make_record()
        await self._start()
        if bill.ending.valid and bill.holding == "turn_end":
            return  # its stream ends by itself, and the mail goes out then
        first = "turn_end" if bill.holding == "turn_end" else "confirmation"
        held = [await self._held(_MAIL, invoice, first) for invoice in bill.invoices]
        if bill.holding == "delay" and all(held):
            await self._answer(_MAIL, bill.invoices[0], confirmed=True)
            await self._held(_MAIL, bill.invoices[0], "delay")
            # What is counted is counted after that: a mail that goes out late is found.
            self.rig.delays_until(self._delay_s)
        await asyncio.sleep(_HELD_S)

    async def _make_record(self) -> None:
        record = call("create_record", kind="ticket", id=self.bill.name)
        self._made = await self.rig.turns.start(reply(record), say("Made."))
        await self.rig.turns.settled(self._made, within=_PATIENCE_S)

    async def _start(self) -> None:
        bill = self.bill
        policies = {_MAIL: {"delay": f"confirmed+{self._delay_s}s"}.get(bill.holding, bill.holding)}
        calls = [_charge(bill), *map(_mail, bill.invoices)]
        if bill.ending.name == "failed_tool":
            # So the charge is declined when the mail is held, however slow the machine is.
            policies["charge_card"] = "confirmed"
        if bill.ending.name == "stale":
            policies["update_record"] = "confirmed"
            update = call("update_record", kind="ticket", id=bill.name, fields={"billed": True})
            calls.insert(1, update)
        streams_on = bill.holding == "turn_end" and not bill.ending.valid
        deadline = _DEADLINE_S * 1000 if bill.ending.name == "deadline" else None
        self._started = await self.rig.turns.start(
            reply(*calls), _LONG if streams_on else say("Done."), policies=policies, deadline_ms=deadline
        )

    async def end(self) -> None:
        """Answer, or stop it, or let the world move."""
        bill, first = self.bill, self.bill.invoices[0]
        match bill.ending.name:
            case "killed" | "stopped":
                await self.rig.turns.turns.abort(self.rig.turns.who, self._turn.ref.turn)
            case "failed_tool":
                await self._held("charge_card", bill.name, "confirmation")
                await self._answer("charge_card", bill.name, confirmed=True)
            case "stale":
                await self._held("update_record", f"ticket/{bill.name}", "confirmation")
                await self.rig.edit(bill.name)
                await self._answer("update_record", f"ticket/{bill.name}", confirmed=True)
            case "losing_branch" | "rejected":
                await asyncio.gather(
                    *(self._answer(_MAIL, one, confirmed=one in bill.wanted) for one in bill.invoices)
                )
            case "valid" | "survived" if bill.holding == "confirmed":
                await self._answer(_MAIL, first, confirmed=True)
            case _:
                return  # nobody does anything

    async def settle(self) -> Ran:
        """Wait until it has ended, and then confirm after all what mustn't go out: it must be refused."""
        turns = self.rig.turns
        view = await turns.settled(self._turn, within=_PATIENCE_S)
        mails = [effect for effect in view.effects if effect.tool == _MAIL]
        late = [mail for mail in mails if mail.identity in self.bill.forbidden]
        taken = sum([await self._is_taken(mail) for mail in late])
        own = tuple(one.ref.turn for one in (self._made, self._turn) if one is not None)
        return Ran(self.bill, view.state.value, own, len(mails), taken)

    async def _is_taken(self, mail: EffectView) -> bool:
        turns = self.rig.turns
        try:
            await turns.turns.confirm(turns.who, mail.effect, version=mail.version, digest=mail.digest)
        except DecisionRefused:
            return False
        return True

    @property
    def _delay_s(self) -> int:
        if self.bill.ending.valid:
            # A mail that is on the wire when its worker is killed is another matter: not held any more.
            return _DELAY_S if self.bill.ending.killed else _DELAY_TO_PASS_S
        return _DELAY_OF_A_KILL_S if self.bill.ending.killed else _DELAY_S

    @property
    def _turn(self) -> Started:
        if self._started is None:
            raise RuntimeError("the turn hasn't begun")
        return self._started

    async def _effect(self, tool: str, identity: str) -> EffectView | None:
        view = await self.rig.turns.view(self._turn)
        return next((one for one in view.effects if (one.tool, one.identity) == (tool, identity)), None)

    async def _held(self, tool: str, identity: str, why: str) -> bool:
        """Wait until that effect is held; tell False if the turn has ended before."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                view = await self.rig.turns.view(self._turn)
                if (tool, identity, why) in [(one.tool, one.identity, one.held_for) for one in view.effects]:
                    return True
                if view.settlement is not None:
                    return False
                await asyncio.sleep(_GLANCE_S)

    async def _answer(self, tool: str, identity: str, *, confirmed: bool) -> None:
        turns = self.rig.turns
        shown = await self._effect(tool, identity)
        if shown is None:
            raise RuntimeError(f"{self._turn.ref.turn}: {tool} of {identity} isn't prepared")
        answer = turns.turns.confirm if confirmed else turns.turns.reject
        await answer(turns.who, shown.effect, version=shown.version, digest=shown.digest)


@dataclass
class BareTurn:
    """A run of the plain saga."""

    rig: LeakRig
    bill: Bill
    _handle: WorkflowHandle[Any, Any] | None = field(default=None, init=False)

    async def begin(self) -> None:
        """Start it, and return once the mails have gone out and what is beside them has ended."""
        name = self.bill.ending.name
        start = BilledTurn(self.bill.name, list(self.bill.invoices))
        if name == "stale":
            start.record = await self._make_record()
        if name == "unanswered":
            start.answer_within_s = ANSWER_WITHIN_S
        if name == "deadline":
            start.deadline_s = _DEADLINE_S
        queue = self.rig.workers["bare"].env["TURNSAGA_TASK_QUEUE"]
        self._handle = await self.rig.client.start_workflow(
            "BilledSaga", start, id=f"billed-{self.bill.name}", task_queue=queue
        )
        if name in {"failed_tool", "unanswered", "deadline"}:
            return  # it ends by itself
        async with asyncio.timeout(_PATIENCE_S):
            await self._handle.execute_update("asking")

    async def _make_record(self) -> str:
        token = self.rig.sandbox.vendor.crm_token.get_secret_value()
        answer = await self.rig.sandbox.http.post(
            f"/crm/sobjects/ticket/{self.bill.name}",
            json={"fields": {}},
            headers={"Authorization": f"Bearer {token}"},
        )
        answer.raise_for_status()
        return self.bill.name

    async def end(self) -> None:
        """Answer, or cancel it, or let the world move."""
        match self.bill.ending.name:
            case "killed" | "stopped":
                await self._run.cancel()
            case "stale":
                await self.rig.edit(self.bill.name)
                await self._run.signal("answer", list(self.bill.invoices))
            case "losing_branch" | "rejected" | "valid" | "survived":
                await self._run.signal("answer", list(self.bill.wanted))
            case _:
                return  # nobody does anything

    async def settle(self) -> Ran:
        """Wait until its run has ended."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._run.result()
        except WorkflowFailureError as error:
            return Ran(self.bill, _word(error))
        return Ran(self.bill, "completed")

    @property
    def _run(self) -> WorkflowHandle[Any, Any]:
        if self._handle is None:
            raise RuntimeError("the turn hasn't begun")
        return self._handle


def _word(error: WorkflowFailureError) -> str:
    return "cancelled" if type(error.cause).__name__ == "CancelledError" else "failed"


def _charge(bill: Bill) -> dict[str, Any]:
    return call("charge_card", customer="cus_1", amount="10.00", currency="EUR", invoice=bill.name)


def _mail(invoice: str) -> dict[str, Any]:
    return call(_MAIL, to="ada@example.com", invoice=invoice, amount="10.00")
