"""Answers: JSON, and errors as ``application/problem+json`` with a stable ``type`` word.

Source of the shape: https://www.rfc-editor.org/rfc/rfc9457.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from turnsaga.errors import (
    DecisionRefused,
    EngineUnavailable,
    InvalidRequest,
    PolicyLoosened,
    PolicyRefused,
    RequestRefused,
    ResolutionRefused,
    StartConflict,
    StoreUnavailable,
    TurnInProgress,
    TurnSagaError,
)

__all__ = ["Problem", "Word", "answer", "answer_problem", "handle_errors", "invalid_fields", "unavailable"]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_RETRY_AFTER_S: Final = "1"


class Word(StrEnum):
    """The ``type`` of a problem. Clients decide by it, so none is ever renamed."""

    ALREADY_DECIDED = "already_decided"
    ALREADY_RESOLVED = "already_resolved"
    BAD_REQUEST = "bad_request"
    CHANGED = "changed"
    EXPIRED = "expired"
    FORBIDDEN = "forbidden"
    FORBIDDEN_HOST = "forbidden_host"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    IDEMPOTENCY_KEY_MISSING = "idempotency_key_missing"
    INTERNAL = "internal"
    INVALID_REQUEST = "invalid_request"
    KEYS_UNAVAILABLE = "keys_unavailable"
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    MALFORMED_JSON = "malformed_json"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_FOUND = "not_found"
    NOT_HELD = "not_held"
    NOT_READY = "not_ready"
    NOT_RESOLVABLE = "not_resolvable"
    POLICY_REFUSED = "policy_refused"
    RATE_LIMITED = "rate_limited"
    STALE = "stale"
    STOPPING = "stopping"
    TOO_LARGE = "too_large"
    TURN_ABORTED = "turn_aborted"
    TURN_IN_PROGRESS = "turn_in_progress"
    UNAUTHENTICATED = "unauthenticated"
    UNSUPPORTED = "unsupported"


_KNOWN: Final[Mapping[Word, tuple[int, str]]] = {
    Word.ALREADY_DECIDED: (409, "Another answer came first"),
    Word.ALREADY_RESOLVED: (409, "Another word came first"),
    Word.NOT_RESOLVABLE: (409, "Its state doesn't allow this word"),
    Word.CHANGED: (409, "What is held isn't what was answered"),
    Word.EXPIRED: (409, "The time to answer is over"),
    Word.NOT_HELD: (409, "It waits for nobody's answer"),
    Word.TURN_ABORTED: (409, "The turn was stopped first"),
    Word.BAD_REQUEST: (400, "The request can't be read"),
    Word.FORBIDDEN: (403, "This role may not ask for it"),
    Word.FORBIDDEN_HOST: (403, "This host name isn't served"),
    Word.ENGINE_UNAVAILABLE: (503, "Temporal doesn't answer"),
    Word.IDEMPOTENCY_CONFLICT: (422, "The key was used with another body"),
    Word.IDEMPOTENCY_KEY_MISSING: (400, "The header Idempotency-Key is missing"),
    Word.INTERNAL: (500, "Something failed on our side"),
    Word.INVALID_REQUEST: (422, "A field is wrong"),
    Word.KEYS_UNAVAILABLE: (503, "The keys of tokens can't be had"),
    Word.LEDGER_UNAVAILABLE: (503, "The ledger doesn't answer"),
    Word.MALFORMED_JSON: (400, "The body isn't JSON"),
    Word.METHOD_NOT_ALLOWED: (405, "This method isn't for this address"),
    Word.NOT_FOUND: (404, "Not found"),
    Word.NOT_READY: (503, "Not ready"),
    Word.POLICY_REFUSED: (422, "A policy isn't available"),
    Word.RATE_LIMITED: (429, "Asked too often"),
    Word.STALE: (409, "Another turn is active"),
    Word.STOPPING: (503, "The server stops"),
    Word.TOO_LARGE: (413, "The body is too large"),
    Word.TURN_IN_PROGRESS: (409, "A turn of this conversation hasn't ended"),
    Word.UNAUTHENTICATED: (401, "It isn't said who acts"),
    Word.UNSUPPORTED: (422, "Not in this version"),
}


class Problem(TurnSagaError):
    """A request that is answered with a problem; ``members`` go into its body beside the standard ones."""

    def __init__(
        self,
        word: Word,
        detail: str,
        *,
        members: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.word = word
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = dict(members or {})

    @property
    def status(self) -> int:
        """The HTTP status, which the word decides."""
        return _KNOWN[self.word][0]


def answer(
    body: BaseModel | Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON answer. It is its user's own, so no cache keeps it."""
    content = body.model_dump(mode="json") if isinstance(body, BaseModel) else body
    return Response(
        json.dumps(content, separators=(",", ":")),
        status,
        {"cache-control": "no-store", **(headers or {})},
        "application/json",
    )


def answer_problem(problem: Problem) -> Response:
    """Return the problem as an answer."""
    status, title = _KNOWN[problem.word]
    body = {"type": problem.word, "title": title, "status": status, "detail": problem.detail}
    response = answer({**body, **problem.members}, status, problem.headers)
    response.headers["content-type"] = "application/problem+json"
    return response


def invalid_fields(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """Return the problem that names each wrong field of pydantic's list; ``field`` is the first one."""
    named = [(_field(error), str(error["msg"])) for error in errors]
    detail = "; ".join(f"{field}: {message}" for field, message in named)
    return Problem(Word.INVALID_REQUEST, detail, members={"field": named[0][0]})


def handle_errors(app: FastAPI) -> None:
    """Have the app answer every foreseen error as a problem. The rest is caught by ``Guard``."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestRefused, _on_refused)
    app.add_exception_handler(StoreUnavailable, _on_unavailable)
    app.add_exception_handler(EngineUnavailable, _on_unavailable)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_gone)


def _field(error: Mapping[str, Any]) -> str:
    place = [str(part) for part in error["loc"] if part not in {"query", "path", "header"}]
    return ".".join(place) or "body"


async def _on_problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101  # it is registered for this class
    return answer_problem(error)


async def _on_refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)  # noqa: S101  # as above
    match error:
        case TurnInProgress() | StartConflict():
            members: dict[str, object] = {"turn": error.turn}
        case PolicyLoosened():
            members = {"tool": error.tool, "policy": error.policy, "role": "service"}
        case PolicyRefused():
            members = {"tool": error.tool, "policy": error.policy}
        case DecisionRefused():
            members = {"effect": error.effect}
        case ResolutionRefused():
            members = {"effect": error.effect, "state": error.state}
        case InvalidRequest():
            members = {"field": error.field}
        case _:
            members = {}
    return answer_problem(Problem(Word(error.problem), str(error), members=members))


async def _on_unavailable(_request: Request, error: Exception) -> Response:
    # The message names the machine and the reason: for the log, not for the user.
    _log.warning("web.unavailable", reason=str(error))
    if isinstance(error, EngineUnavailable):
        word, what = Word.ENGINE_UNAVAILABLE, "Temporal"
    else:
        word, what = Word.LEDGER_UNAVAILABLE, "the ledger"
    return answer_problem(unavailable(word, f"{what} doesn't answer; ask again, which is safe"))


def unavailable(word: Word, detail: str, *, members: Mapping[str, object] | None = None) -> Problem:
    """Return a problem that goes away by itself, and say when to ask again."""
    return Problem(word, detail, members=members, headers={"retry-after": _RETRY_AFTER_S})


async def _on_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # as above
    return answer_problem(invalid_fields(error.errors()))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # as above
    path = request.url.path
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            problem = Problem(Word.NOT_FOUND, f"there is no route {path!r}")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            problem = Problem(
                Word.METHOD_NOT_ALLOWED, f"{path!r} doesn't take {request.method}", headers=error.headers
            )
        case _:
            problem = Problem(Word.BAD_REQUEST, str(error.detail))
    return answer_problem(problem)


async def _on_gone(_request: Request, _error: Exception) -> Response:
    """Answer a client that went away while it was sending; nobody reads this."""
    return answer_problem(Problem(Word.BAD_REQUEST, "the body ended early"))
