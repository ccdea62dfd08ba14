"""Effects: the canonical record of one, and the ledger of a conversation or an account."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from turnsaga.client import Answered
from turnsaga.models import EffectView
from web.bodies import DecisionBody, read_body
from web.problems import Problem, Word, answer
from web.rates import Reader, Writer
from web.tier import TierOf

__all__ = ["router"]

router = APIRouter()


@router.get("/v1/effects")
async def account(request: Request, who: Reader, tier: TierOf, *, outstanding: bool = False) -> Response:
    """Return the account's effects; ``outstanding`` leaves those that its user has yet to be told of."""
    _refuse_filters(request, ("state", "since_version"))
    return answer(_listed(await tier.store.account_effects(who, outstanding=outstanding)))


@router.get("/v1/effects/by-key/{key}")
async def by_key(key: str, who: Reader, tier: TierOf) -> Response:
    """Return the effect that an idempotency key stands for."""
    return answer(await tier.store.effect_by_key(who, key))


@router.get("/v1/effects/{effect}")
async def show(effect: str, who: Reader, tier: TierOf) -> Response:
    """Return one effect."""
    return answer(await tier.client.effect(who, effect))


@router.post("/v1/effects/{effect}/confirm")
async def confirm(effect: str, request: Request, who: Writer, tier: TierOf) -> Response:
    """Confirm a held effect: 202 if this answer decided, 200 if the same one came before."""
    body = await read_body(request, DecisionBody)
    deciding = tier.client.confirm(who, effect, version=body.version, digest=body.digest)
    return _answer_decided(await tier.untorn.run(deciding))


@router.post("/v1/effects/{effect}/reject")
async def reject(effect: str, request: Request, who: Writer, tier: TierOf) -> Response:
    """Reject a held effect, which is released: 202 if this answer decided, 200 if it came before."""
    body = await read_body(request, DecisionBody)
    deciding = tier.client.reject(who, effect, version=body.version, digest=body.digest)
    return _answer_decided(await tier.untorn.run(deciding))


@router.post("/v1/effects/{effect}/acknowledge")
async def acknowledge(effect: str, who: Writer, tier: TierOf) -> Response:
    """Note that the user has seen the effect, which is then outstanding no more."""
    return answer(await tier.store.acknowledge(who, effect))


@router.get("/v1/conversations/{conversation}/effects")
async def of_conversation(conversation: str, request: Request, who: Reader, tier: TierOf) -> Response:
    """Return a conversation's effects; one that has none, or that doesn't exist, is an empty list."""
    _refuse_filters(request, ("outstanding", "state", "since_version"))
    return answer(_listed(await tier.store.conversation_effects(who, conversation)))


def _refuse_filters(request: Request, later: Sequence[str]) -> None:
    """Refuse filters of later versions: an unfiltered list would be taken for a filtered one."""
    for name in later:
        if name in request.query_params:
            raise Problem(
                Word.UNSUPPORTED, f"{name}: this filter comes with a later version", members={"field": name}
            )


def _answer_decided(answered: Answered) -> Response:
    return answer(answered.effect, HTTPStatus.ACCEPTED if answered.first else HTTPStatus.OK)


def _listed(effects: Sequence[EffectView]) -> dict[str, Any]:
    return {"effects": [effect.model_dump(mode="json") for effect in effects]}
