"""Stop a turn. Whoever stops twice, or late, gets the turn as it is: stopping is never refused.

So these routes take their ``Caller`` uncounted, see ``web.rates``.
"""

from http import HTTPStatus

from fastapi import APIRouter, Request
from starlette.responses import Response

from turnsaga.errors import NotFound
from turnsaga.models import Principal
from web.bodies import AbortBody, AbortConversationBody, read_body
from web.identity import Caller
from web.problems import Problem, Word, answer
from web.tier import Tier, TierOf

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/turns/{turn}/abort")
async def abort_turn(turn: str, request: Request, who: Caller, tier: TierOf) -> Response:
    """Stop the turn: 202 if this call stopped it, 200 if it was stopping or had ended."""
    body = await read_body(request, AbortBody, optional=True)
    return await tier.untorn.run(_abort(tier, who, turn, body))


@router.post("/v1/conversations/{conversation}/abort")
async def abort_conversation(conversation: str, request: Request, who: Caller, tier: TierOf) -> Response:
    """Stop the conversation's active turn, or only the one that the caller expects to be active.

    A Stop that comes after the end is answered with 200 and the turn that ended: the one expected, or the
    conversation's newest.
    """
    body = await read_body(request, AbortConversationBody, optional=True)
    return await tier.untorn.run(_abort_active(tier, who, conversation, body))


async def _abort(tier: Tier, who: Principal, turn: str, body: AbortBody) -> Response:
    aborted = await tier.client.abort(who, turn, reason=body.reason, seen=body.seen)
    view = await tier.client.view(who, turn)
    return answer(view, HTTPStatus.ACCEPTED if aborted.first else HTTPStatus.OK)


async def _abort_active(
    tier: Tier, who: Principal, conversation: str, body: AbortConversationBody
) -> Response:
    active = await tier.store.active_turn(who, conversation)
    expected = body.expected_turn
    if active is not None and expected not in {None, active}:
        raise Problem(
            Word.STALE,
            f"turn {active!r} is active now; look at it before you stop it",
            members={"turn": active},
        )
    turn = active or expected or await tier.store.latest_turn(who, conversation)
    if turn is None:
        raise NotFound("conversation", conversation)
    if active is None and (await tier.client.view(who, turn)).conversation != conversation:
        raise NotFound("turn", turn)
    return await _abort(tier, who, turn, body)
