"""``find_customer``, ``create_record``, ``update_record``: a CRM with versions and without keys.

The CRM takes each write once and doesn't know keys, but it notes the key that a write carries, so it can
be asked. An undo names the version that this effect made: what somebody wrote since is never overwritten.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from activities.tools._proofs import is_refusal, lost, patience
from turnsaga.deployment import Finding
from turnsaga.errors import ChangedSince, NotApplied, UndoRefused
from turnsaga.outcomes import Answer, learned, read_status
from turnsaga.tools import (
    Call,
    Committed,
    EffectTool,
    Found,
    JsonObject,
    Keyed,
    Limits,
    Missing,
    Prepared,
    ReadTool,
    SearchResult,
    Tool,
    Undone,
)

__all__ = ["CreateRecord", "FindCustomer", "Records", "UpdateRecord"]

Name = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Kind = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,39}$")]
# A conditional write can be repeated: the second finds its version gone and changes nothing.
_CONDITIONAL: Final = Keyed(timedelta(days=3650))
_LIMITS: Final = Limits(landing_window=timedelta(seconds=10))


class FindCustomer(BaseModel):
    """Arguments of ``find_customer``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: Annotated[str, StringConstraints(max_length=200)]


class CreateRecord(BaseModel):
    """Arguments of ``create_record``; without an ``id`` one is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    id: Name | None = None
    fields: dict[str, Any] = Field(default_factory=dict)


class UpdateRecord(BaseModel):
    """Arguments of ``update_record``; ``fields`` are merged into the record."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    id: Name
    fields: dict[str, Any]


class Records:
    """The CRM's calls."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=httpx.Timeout(30)
        )

    async def close(self) -> None:
        """Close the connections to the CRM."""
        await self._http.aclose()

    async def answers(self) -> Finding:
        """Ask the CRM for a customer that there isn't. Changes nothing."""
        try:
            answer = await self._http.get("/query", params={"kind": "customer", "q": "turnsaga doctor"})
        except httpx.LocalProtocolError:
            return Finding.fail("the CRM's token can't be sent in a header", "see TURNSAGA_CRM_TOKEN")
        except httpx.HTTPError as error:
            return Finding.fail(f"the CRM can't be reached ({type(error).__name__})", "see TURNSAGA_CRM_URL")
        if answer.status_code in {401, 403}:
            return Finding.fail("the CRM refuses the token", "set TURNSAGA_CRM_TOKEN to one that is valid")
        if not answer.is_success:
            return Finding.fail(f"the CRM answers {answer.status_code}", "see TURNSAGA_CRM_URL")
        return Finding.ok("the CRM takes the token")

    def tools(self) -> tuple[Tool, ...]:
        """Return the three tools."""
        find = ReadTool(
            name="find_customer",
            description="Find customers by name, mail address or id.",
            arguments=FindCustomer,
            says="find customers like {query}",
            read=self.find_customer,
        )
        create = EffectTool(
            name="create_record",
            description="Create a record of some kind (ticket, note, contact …) in the CRM.",
            arguments=CreateRecord,
            system="crm",
            says="create {kind} {id}",
            prepare=self.prepare_create,
            commit=self.create,
            lookup=self.find_create,
            reversible=True,
            # Its result, the id, is what the model goes on with.
            commits="immediate",
            compensate=self.delete,
            check_undone=self.is_gone,
            undo_says="delete {kind} {id}",
            undo_repeat=_CONDITIONAL,
            limits=_LIMITS,
        )
        update = EffectTool(
            name="update_record",
            description="Change fields of a record in the CRM.",
            arguments=UpdateRecord,
            system="crm",
            says="update {kind} {id}",
            prepare=self.prepare_update,
            current=self.version_now,
            commit=self.update,
            lookup=self.find_update,
            reversible=True,
            compensate=self.restore,
            check_undone=self.is_restored,
            undo_says="restore {kind} {id}",
            undo_repeat=_CONDITIONAL,
            resources=lambda arguments: [f"{arguments.kind}/{arguments.id}"],
            limits=_LIMITS,
        )
        return find, create, update

    async def find_customer(self, arguments: FindCustomer, call: Call) -> JsonObject:  # noqa: ARG002  # a read needs no key
        """Search."""
        answer = await self._http.get("/query", params={"kind": "customer", "q": arguments.query})
        answer.raise_for_status()
        return {"customers": answer.json()["records"]}

    # create_record

    async def prepare_create(self, arguments: CreateRecord, call: Call) -> Prepared:
        """Choose the record's id now, so that every attempt and every question is about the same one."""
        record = arguments.id or f"{arguments.kind.lower()}_{re.sub('[^a-z0-9]', '', call.effect)[3:19]}"
        request = {"kind": arguments.kind, "id": record, "fields": arguments.fields}
        return Prepared(request, identity=f"{arguments.kind}/{record}")

    async def create(self, request: JsonObject, call: Call) -> Committed:
        """Create the record."""
        answer = await self._sent("POST", _path(request), call, json={"fields": request["fields"]})
        if answer.status_code == 409:
            raise NotApplied("a record of this id exists already")
        record = _applied(answer)
        return Committed(
            receipt={"version": record["version"]},
            result={"kind": request["kind"], "id": request["id"], "version": record["version"]},
        )

    async def find_create(self, request: JsonObject, call: Call) -> SearchResult:
        """Look for a creation under this key in the record's log."""
        return await self._logged(request, call, "create")

    async def delete(self, request: JsonObject, receipt: JsonObject, call: Call) -> Undone:
        """Delete the record if it is still as this effect made it; one that is gone counts as undone."""
        headers = {"If-Match": str(receipt.get("version")), "Undo-Of": call.effect_key}
        answer = await self._sent("DELETE", _path(request), call, headers=headers)
        if answer.status_code == 404:
            return Undone({"already": "gone"})
        if answer.status_code == 412:
            raise ChangedSince("somebody has changed the record since")
        _undone(answer)
        return Undone({"deleted": f"{request['kind']}/{request['id']}"})

    async def is_gone(self, request: JsonObject, receipt: JsonObject, call: Call) -> bool:  # noqa: ARG002  # the key is enough
        """Read the record's log back: deleted since this effect made it, whoever has made it anew."""
        return _has_ended(await self._log(request), "create", call.effect_key)

    # update_record

    async def prepare_update(self, arguments: UpdateRecord, call: Call) -> Prepared:  # noqa: ARG002  # nothing is sent yet
        """Note the version that is read now: the update is refused on any other, and undo restores it."""
        request = {"kind": arguments.kind, "id": arguments.id, "fields": arguments.fields}
        answer = await self._http.get(_path(request))
        if answer.status_code == 404:
            raise NotApplied("there is no such record")
        answer.raise_for_status()
        request["previous"] = answer.json()["version"]
        return Prepared(
            request, identity=f"{arguments.kind}/{arguments.id}", version=str(request["previous"])
        )

    async def version_now(self, request: JsonObject, call: Call) -> str | None:  # noqa: ARG002  # read by id
        """Return the record's version now; None if it is gone."""
        answer = await self._http.get(_path(request))
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return str(answer.json()["version"])

    async def update(self, request: JsonObject, call: Call) -> Committed:
        """Merge the fields, on the version that prepare read."""
        headers = {"If-Match": str(request["previous"])}
        answer = await self._sent(
            "PATCH", _path(request), call, headers=headers, json={"fields": request["fields"]}
        )
        if answer.status_code == 412:
            raise NotApplied("stale: the record was changed by somebody else meanwhile; read it again")
        record = _applied(answer)
        return Committed(
            receipt={"version": record["version"]},
            result={"kind": request["kind"], "id": request["id"], "version": record["version"]},
        )

    async def find_update(self, request: JsonObject, call: Call) -> SearchResult:
        """Look for an update under this key in the record's log."""
        return await self._logged(request, call, "update")

    async def restore(self, request: JsonObject, receipt: JsonObject, call: Call) -> Undone:
        """Restore the version before, if the record is still as this effect made it."""
        headers = {"If-Match": str(receipt.get("version")), "Undo-Of": call.effect_key}
        path = f"{_path(request)}/revert"
        answer = await self._sent("POST", path, call, headers=headers, json={"to": request["previous"]})
        if answer.status_code == 404:
            return Undone({"already": "gone"})
        if answer.status_code == 412:
            return await self._restored_before(request, call)
        _undone(answer)
        return Undone({"restored": request["previous"]})

    async def _restored_before(self, request: JsonObject, call: Call) -> Undone:
        # A repeat of an undo whose answer was lost finds another version: the one that it restored.
        entries = await self._log(request)
        if any(entry["op"] == "revert" and entry["key"] == call.key for entry in entries):
            return Undone({"restored": request["previous"], "already": "restored"})
        raise ChangedSince("somebody has changed the record since")

    async def is_restored(self, request: JsonObject, receipt: JsonObject, call: Call) -> bool:  # noqa: ARG002  # the key is enough
        """Read the record's log back: restored or deleted since this effect changed it."""
        return _has_ended(await self._log(request), "update", call.effect_key)

    # The wire

    async def _logged(self, request: JsonObject, call: Call, op: str) -> SearchResult:
        for entry in await self._log(request):
            if entry["op"] == op and entry["key"] == call.effect_key:
                version = entry["version"]
                result = {"kind": request["kind"], "id": request["id"], "version": version}
                return Found(receipt={"version": version}, result=result)
        return Missing()

    async def _log(self, request: JsonObject) -> list[dict[str, Any]]:
        answer = await self._http.get(f"{_path(request)}/versions")
        if answer.status_code == 404:
            return []
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        return found

    async def _sent(
        self,
        method: str,
        path: str,
        call: Call,
        *,
        headers: dict[str, str] | None = None,
        json: JsonObject | None = None,
    ) -> httpx.Response:
        try:
            return await self._http.request(
                method,
                path,
                headers={**call.headers(), **(headers or {})},
                json=json,
                timeout=patience(call),
            )
        except httpx.HTTPError as error:
            raise learned(lost(error), "the CRM", type(error).__name__) from None


def _path(request: JsonObject) -> str:
    return f"/sobjects/{quote(str(request['kind']), safe='')}/{quote(str(request['id']), safe='')}"


def _has_ended(entries: Sequence[Mapping[str, Any]], op: str, key: str) -> bool:
    """Tell whether a write under this key no longer counts; one that the log doesn't know never did.

    A restoration ends it if it goes back to before it: later versions can come and go.
    """
    written: int | None = None
    for entry in entries:
        if entry["op"] == op and entry["key"] == key:
            written = entry["version"]
        elif written is not None and (
            entry["op"] == "delete" or (entry["op"] == "revert" and entry["version"] < written)
        ):
            written = None
    return written is None


def _applied(answer: httpx.Response) -> dict[str, Any]:
    """Return the record of a write that was applied, or say what another answer proves."""
    if not answer.is_success:
        raise learned(read_status(answer.status_code), "the CRM", answer.status_code)
    try:
        record = dict(answer.json())
        return {**record, "version": int(record["version"])}
    except (ValueError, TypeError, KeyError):
        raise learned(Answer.UNREADABLE, "the CRM") from None


def _undone(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    if is_refusal(answer):
        raise UndoRefused(f"the CRM refuses the undo ({answer.status_code})")
    raise learned(read_status(answer.status_code), "the CRM", answer.status_code)
