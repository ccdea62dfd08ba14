"""A shelf as a system of its own: a folder with one file for each loan, named by the loan's key."""

import asyncio
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from turnsaga import Call, Committed, EffectTool, Found, Keyed, Missing, Undone
from turnsaga.tools import JsonObject, SearchResult

__all__ = ["Loan", "Shelf"]

_YEAR = timedelta(days=365)


class Loan(BaseModel):
    """Which book is lent."""

    title: str


class Shelf:
    """Books that are out, in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir()

    def tool(self) -> EffectTool[Loan]:
        """Return the tool that lends a book."""
        return EffectTool(
            name="lend_book",
            description="Lend a book.",
            arguments=Loan,
            system="shelf",
            says="lend {title}",
            commit=self.lend,
            lookup=self.look_up,
            repeat=Keyed(_YEAR),
            reversible=True,
            compensate=self.take_back,
            undo_says="take {title} back",
            undo_repeat=Keyed(_YEAR),
            identity=lambda loan: loan.title,
            # Its result is what the conversation goes on with.
            commits="immediate",
        )

    def lent(self) -> tuple[str, ...]:
        """Return the titles that are out, sorted."""
        return tuple(sorted(loan.read_text(encoding="utf-8") for loan in self._folder.iterdir()))

    async def lend(self, request: JsonObject, call: Call) -> Committed:
        """Write the loan down; twice under one key is once."""
        await asyncio.to_thread(self._loan(call).write_text, str(request["title"]), encoding="utf-8")
        return Committed(receipt={"loan": call.key}, result={"lent": request["title"]})

    async def look_up(self, request: JsonObject, call: Call) -> SearchResult:
        """Say whether the loan is written down."""
        del request
        if await asyncio.to_thread(self._loan(call).exists):
            return Found(receipt={"loan": call.key})
        return Missing()

    async def take_back(self, request: JsonObject, receipt: JsonObject, call: Call) -> Undone:
        """Strike the loan out; twice is once."""
        del request, call
        loan = self._folder / str(receipt["loan"])
        await asyncio.to_thread(loan.unlink, missing_ok=True)
        return Undone(evidence={"taken_back": loan.name})

    def _loan(self, call: Call) -> Path:
        return self._folder / call.effect_key
