"""CRM: versioned records on a Salesforce-like REST wire, which honours no idempotency keys."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from sandbox import records, truth
from sandbox.calls import Answer, Moment, Op, Operation, json_answer
from sandbox.errors import Refused
from sandbox.wire import WireRequest

SYSTEM = "crm"


class _FieldsBody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    fields: dict[str, JsonValue]


class _RevertBody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    to: int = Field(ge=1)


_Body = TypeVar("_Body", bound=BaseModel)


class _RecordCall:
    """A request on one record."""

    def __init__(self, request: WireRequest, kind: str, record_id: str) -> None:
        self.kind = kind
        self.id = record_id
        self.key = request.headers.get("idempotency-key") or None
        self.undo_of = request.headers.get("undo-of") or None
        self.if_match = _if_match(request)

    @property
    def identity(self) -> str:
        return f"{self.kind}/{self.id}"

    def record(self, moment: Moment) -> records.Entry:
        """Return the record, if its version is the one that the request expects.

        Raises:
            Refused: it isn't there, or has another version.
        """
        record = records.current(moment.db, self.kind, self.id)
        if record is None:
            raise self.missing()
        if self.if_match is not None and self.if_match != record.version:
            message = f"the record has version {record.version}, not {self.if_match}"
            raise _refusal(412, "VERSION_MISMATCH", message, version=record.version)
        return record

    def missing(self) -> Refused:
        return _refusal(404, "NOT_FOUND", f"there is no record {self.identity!r}")


def read(request: WireRequest) -> Operation:
    """Return what a request asks for; one that is refused is an operation that refuses."""
    key = request.headers.get("idempotency-key") or None
    identity = None
    try:
        if request.bearer is None:
            raise _refusal(401, "INVALID_SESSION_ID", "no bearer token in the Authorization header")
        match request.segments:
            case ("query",):
                perform = _query(request)
            case ("sobjects", kind, record_id, *action) if kind and record_id:
                call = _RecordCall(request, kind, record_id)
                identity = call.identity
                perform = _on_record(request, call, tuple(action))
            case _:
                raise _refusal(404, "NOT_FOUND", f"there is nothing at {request.path!r}")
    except Refused as refused:
        perform = partial(_answer, answer=refused.answer)
    return Operation(
        op=_op(request),
        method=request.method,
        path=request.path,
        perform=perform,
        failure=_failure,
        key=key,
        identity=identity,
    )


def _answer(_moment: Moment, answer: Answer) -> Answer:
    return answer


def _op(request: WireRequest) -> Op:
    if request.method == "GET":
        return Op.LOOKUP
    return Op.UNDO if request.headers.get("undo-of") else Op.APPLY


def _on_record(
    request: WireRequest, call: _RecordCall, action: tuple[str, ...]
) -> Callable[[Moment], Answer]:
    match (request.method, *action):
        case ("POST",):
            return partial(_create, call=call, fields=_body(request, _FieldsBody).fields)
        case ("GET",):
            return partial(_get, call=call)
        case ("PATCH",):
            return partial(_update, call=call, fields=_body(request, _FieldsBody).fields)
        case ("DELETE",):
            return partial(_delete, call=call)
        case ("GET", "versions"):
            return partial(_versions, call=call)
        case ("POST", "revert"):
            return partial(_revert, call=call, to=_body(request, _RevertBody).to)
        case (_, "versions" | "revert") | (_,):
            raise _refusal(405, "METHOD_NOT_ALLOWED", f"{request.method} isn't possible here")
        case _:
            raise _refusal(404, "NOT_FOUND", f"there is nothing at {request.path!r}")


def _create(moment: Moment, call: _RecordCall, fields: records.Fields) -> Answer:
    if records.current(moment.db, call.kind, call.id) is not None:
        raise _refusal(409, "DUPLICATE_VALUE", f"there already is a record {call.identity!r}")
    record = records.create(moment.db, call.kind, call.id, fields, key=call.key, now=moment.now)
    truth.log_effect(moment, call.identity, ref=str(record.version))
    return json_answer(201, _view(record))


def _get(moment: Moment, call: _RecordCall) -> Answer:
    record = records.current(moment.db, call.kind, call.id, moment.seen_until)
    if record is None:
        raise call.missing()
    return json_answer(200, _view(record))


def _update(moment: Moment, call: _RecordCall, fields: records.Fields) -> Answer:
    record = records.update(moment.db, call.record(moment), fields, key=call.key, now=moment.now)
    truth.log_effect(moment, call.identity, ref=str(record.version))
    return json_answer(200, _view(record))


def _revert(moment: Moment, call: _RecordCall, to: int) -> Answer:
    record = call.record(moment)
    if call.if_match is None:
        raise _refusal(
            428, "PRECONDITION_REQUIRED", "a revert names the version that it takes back in If-Match"
        )
    target = records.version_of_this_life(moment.db, record, to) if to < record.version else None
    if target is None:
        raise _refusal(400, "INVALID_VERSION", f"the record has no version {to} before {record.version}")
    reverted = records.revert(moment.db, record, target, key=call.key, now=moment.now)
    if call.undo_of is not None:
        truth.undo_key(moment.db, SYSTEM, call.identity, call.undo_of, after=to)
    # What others wrote since is overwritten, whatever the request says that it undoes.
    truth.wipe(moment.db, SYSTEM, call.identity, after=to)
    truth.log_change(moment)
    return json_answer(200, _view(reverted))


def _delete(moment: Moment, call: _RecordCall) -> Answer:
    record = call.record(moment)
    records.delete(moment.db, record, key=call.key, now=moment.now)
    if call.undo_of is not None:
        truth.undo_key(moment.db, SYSTEM, call.identity, call.undo_of)
    truth.wipe(moment.db, SYSTEM, call.identity)
    truth.log_change(moment)
    return Answer(204)


def _versions(moment: Moment, call: _RecordCall) -> Answer:
    entries = records.history(moment.db, call.kind, call.id, moment.seen_until)
    if not entries:
        raise call.missing()
    return json_answer(
        200,
        [
            {
                "version": entry.version,
                "op": entry.change,
                "key": entry.key,
                "at": truth.instant(entry.at),
                "fields": entry.fields,
            }
            for entry in entries
        ],
    )


def _query(request: WireRequest) -> Callable[[Moment], Answer]:
    if request.method != "GET":
        raise _refusal(405, "METHOD_NOT_ALLOWED", f"{request.method} isn't possible here")
    try:
        params = parse_qs(request.query, keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise _refusal(400, "MALFORMED_QUERY", "the query string can't be read") from None
    kind = params.get("kind", [""])[-1] or None
    text = params.get("q", [""])[-1]

    def perform(moment: Moment) -> Answer:
        found = records.search(moment.db, kind, text, moment.seen_until)
        return json_answer(200, {"records": [_view(record) for record in found]})

    return perform


def _view(record: records.Entry) -> dict[str, object]:
    return {
        "kind": record.kind,
        "id": record.id,
        "version": record.version,
        "fields": record.fields,
        "created_by": record.created_by,
        "updated_by": record.updated_by,
    }


def _body(request: WireRequest, model: type[_Body]) -> _Body:
    try:
        return model.model_validate_json(request.body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise _refusal(400, "JSON_PARSER_ERROR", f"{where}: {first['msg']}") from error


def _if_match(request: WireRequest) -> int | None:
    given = request.headers.get("if-match")
    if given is None:
        return None
    version = given.strip().strip('"')
    if not (version.isascii() and version.isdigit() and len(version) < 19):
        raise _refusal(400, "INVALID_IF_MATCH", f"If-Match takes a version, not {given!r}")
    return int(version)


def _failure(status: int) -> Answer:
    code = "SERVER_UNAVAILABLE" if status >= 500 else "REQUEST_REFUSED"
    return json_answer(
        status, {"errorCode": code, "message": f"a knob of the sandbox lets this call fail with {status}"}
    )


def _refusal(status: int, code: str, message: str, **more: object) -> Refused:
    return Refused(json_answer(status, {"errorCode": code, "message": message, **more}))
