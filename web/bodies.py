"""Bodies of requests: what they may hold, and how they are read."""

from typing import Annotated, Literal, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnsaga.models import MAX_NOTE, RulingWord
from web.problems import Problem, Word, invalid_fields

__all__ = ["AbortBody", "AbortConversationBody", "DecisionBody", "RulingBody", "StartBody", "read_body"]

B = TypeVar("B", bound=BaseModel)
_Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Body(BaseModel):
    # A misspelt field that is dropped would be a wish that is silently not followed.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StartBody(_Body):
    """What a start asks for. ``model`` and ``policies`` are checked against this deployment later."""

    message: Annotated[str, Field(min_length=1)]
    model: _Name | None = None
    policies: Annotated[dict[_Name, _Name], Field(max_length=100)] | None = None
    on_busy: Literal["refuse", "queue", "abort"] = "refuse"
    on_disconnect: _Name = "continue"
    deadline_ms: int | None = None


class AbortBody(_Body):
    """Why the user stops the turn, and the number of the last event that they saw."""

    reason: Annotated[str, Field(max_length=500)] | None = None
    seen: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


class AbortConversationBody(AbortBody):
    """As ``AbortBody``; ``expected_turn`` is the turn that the user believes to be stopping."""

    expected_turn: _Name | None = None


class DecisionBody(_Body):
    """An answer to a held effect: the version and the digest that its user was shown."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    digest: Annotated[str, Field(min_length=1, max_length=100)]


class RulingBody(_Body):
    """An operator's word on an effect that needs a person, and how they know."""

    word: Annotated[RulingWord, Field(alias="as")]
    note: Annotated[str, Field(min_length=1, max_length=MAX_NOTE, pattern=r"\S")]


async def read_body(request: Request, model: type[B], *, optional: bool = False) -> B:
    """Return the request's body; ``optional`` takes none at all as an empty object.

    Raises:
        Problem: not JSON, or not what the model describes.
    """
    raw = await request.body()
    if optional and not raw.strip():
        raw = b"{}"
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        if errors[0]["type"] == "json_invalid":
            raise Problem(Word.MALFORMED_JSON, errors[0]["msg"]) from None
        raise invalid_fields(errors) from None
