"""What needs a person: an operator's queue, of all users of the tenant, and their word on each of it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from turnsaga.models import Principal
from web.bodies import RulingBody, read_body
from web.identity import OPERATOR
from web.problems import Problem, Word, answer
from web.rates import Reader, Writer
from web.tier import TierOf

__all__ = ["router"]

router = APIRouter()


async def _reader(who: Reader) -> Principal:
    return _operator(who)


async def _writer(who: Writer) -> Principal:
    return _operator(who)


def _operator(who: Principal) -> Principal:
    if who.role != OPERATOR:
        raise Problem(
            Word.FORBIDDEN,
            f"what needs a person is for the role {OPERATOR!r}, and this is {who.role!r}",
            members={"role": OPERATOR},
        )
    return who


@router.get("/v1/attention")
async def queue(who: Annotated[Principal, Depends(_reader)], tier: TierOf) -> Response:
    """Return the effects that have waited for a person longest."""
    waiting = await tier.client.attention(who)
    return answer({"effects": [effect.model_dump(mode="json") for effect in waiting]})


@router.post("/v1/effects/{effect}/resolve")
async def resolve(
    effect: str, request: Request, who: Annotated[Principal, Depends(_writer)], tier: TierOf
) -> Response:
    """Take the operator's word; the same one again is answered alike."""
    body = await read_body(request, RulingBody)
    resolving = tier.client.resolve(who, effect, word=body.word, note=body.note)
    return answer(await tier.untorn.run(resolving))
