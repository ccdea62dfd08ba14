"""Start a turn, and look at it.

Ids in paths are percent-decoded before they are matched, so a conversation's id can hold anything
printable but a slash: an address with ``%2F`` in it is another address, and answered with 404.
"""

import asyncio
from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from turnsaga.errors import EngineUnavailable
from turnsaga.keys import turn_id
from turnsaga.ledger import OPEN_TURN
from turnsaga.models import Principal, TurnView
from turnsaga.store import Started
from web.bodies import StartBody, read_body
from web.problems import Problem, Word, answer, unavailable
from web.rates import Reader, Starter
from web.settings import SCRIPTED, WebSettings
from web.tier import Tier, TierOf

__all__ = ["router"]

router = APIRouter()
_LONGEST_WAIT_S: Final = 60.0
# How soon a wait notices that the server stops or that nobody waits any more.
_GLANCE_S: Final = 0.5
_LOOSENER: Final = "service"


@router.post("/v1/conversations/{conversation}/turns")
async def start(conversation: str, request: Request, who: Starter, tier: TierOf) -> Response:
    """Start a turn: 201, or 200 if this key with this body began it before."""
    key = request.headers.get("idempotency-key", "").strip()
    if not key:
        raise Problem(
            Word.IDEMPOTENCY_KEY_MISSING,
            "send a header Idempotency-Key that names this start, and the same one when you send it again",
        )
    body = await read_body(request, StartBody)
    _check_disconnect(body.on_disconnect)
    _check_model(body.model, tier.settings)
    starting = tier.client.start(
        who,
        conversation,
        message=body.message,
        start_key=key,
        model=body.model,
        policies=body.policies,
        deadline_ms=body.deadline_ms,
        on_busy=body.on_busy,
        may_loosen=not tier.identity.roles_bind or who.role == _LOOSENER,
    )
    try:
        started = await tier.untorn.run(starting)
    except EngineUnavailable as error:
        raise _recorded(who, conversation, key) from error
    return _answer_started(started)


@router.get("/v1/turns/{turn}")
async def show(
    turn: str,
    request: Request,
    who: Reader,
    tier: TierOf,
    *,
    wait: Literal["settled"] | None = None,
    timeout: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 30.0,  # noqa: ASYNC109  # the API's own name
) -> Response:
    """Return the turn, with ``wait=settled`` once it has ended or ``timeout`` seconds are over.

    More than 60 seconds are taken as 60: the answer shows whether to ask again.
    """
    limit = min(timeout, _LONGEST_WAIT_S) if wait else 0.0
    return answer(await _view_when_ended(tier, who, turn, request, limit_s=limit))


async def _view_when_ended(
    tier: Tier, who: Principal, turn: str, request: Request, *, limit_s: float
) -> TurnView:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + limit_s
    while True:
        left = max(0.0, give_up - loop.time())
        seen = await tier.client.settled(who, turn, timeout_s=min(left, _GLANCE_S))
        if seen.state not in OPEN_TURN or left <= _GLANCE_S:
            return seen
        if tier.stopping.is_set() or await request.is_disconnected():
            return seen


def _answer_started(started: Started) -> Response:
    here = f"/v1/turns/{started.ref.turn}"
    return answer(
        {
            "turn": started.ref.turn,
            "state": started.state,
            "links": {"self": here, "events": f"{here}/events", "abort": f"{here}/abort"},
        },
        HTTPStatus.CREATED if started.created else HTTPStatus.OK,
        {"location": here},
    )


def _recorded(who: Principal, conversation: str, key: str) -> Problem:
    turn = turn_id(tenant=who.tenant, user=who.user, conversation=conversation, start_key=key)
    return unavailable(
        Word.ENGINE_UNAVAILABLE,
        f"Temporal doesn't answer; turn {turn!r} is recorded and starts once it does; "
        "asking again with the same key is safe",
        members={"turn": turn},
    )


def _check_disconnect(value: str) -> None:
    if value == "continue":
        return
    field = "on_disconnect"
    if value in {"hold", "abort"}:
        raise Problem(
            Word.UNSUPPORTED,
            f"{field}: {value!r} comes with a later version; this one has 'continue' only",
            members={"field": field},
        )
    raise Problem(
        Word.INVALID_REQUEST, f"{field}: must be 'continue', not {value!r}", members={"field": field}
    )


def _check_model(wished: str | None, settings: WebSettings) -> None:
    model = wished or settings.model
    if model in settings.models:
        return
    if model == SCRIPTED:
        why = "the scripted model is for development, and this is production"
    else:
        why = f"{model!r} isn't available here; there are {', '.join(settings.models) or 'none'}"
    raise Problem(Word.INVALID_REQUEST, f"model: {why}", members={"field": "model"})
