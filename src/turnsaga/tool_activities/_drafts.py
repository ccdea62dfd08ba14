"""What an effect is before it has a row: parsed, keyed, and with all that its later attempts need."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from turnsaga.keys import bounded_name, canonical_json, digest, effect_key
from turnsaga.models import CallRef
from turnsaga.settle import OnUnknown
from turnsaga.store import CallContext, EffectRow, NewEffect, Refreshed, load_object
from turnsaga.tool_activities._common import ms
from turnsaga.tool_activities._plans import call_plan
from turnsaga.tools import EffectTool, Keyed, Prepared, call_policy, card_of, parse_arguments, sentence

__all__ = ["ParsedCall", "draft", "parse_call", "refreshed", "version_name"]


@dataclass(frozen=True)
class ParsedCall:
    """A call's arguments as its tool parsed them, and the key of its effect."""

    arguments: BaseModel
    values: Mapping[str, Any]
    key: str


def parse_call(tool: EffectTool[Any], ref: CallRef, context: CallContext) -> ParsedCall:
    """Parse a stored call.

    Raises:
        InvalidRequest: the arguments don't fit the tool.
    """
    arguments = parse_arguments(tool, context.arguments)
    values = arguments.model_dump(mode="json")
    key = effect_key(
        tool=tool.name,
        arguments=values,
        tenant=ref.tenant,
        user=context.user,
        nonce=context.nonce,
        occurrence=context.occurrence,
    )
    return ParsedCall(arguments, values, key)


def draft(
    tool: EffectTool[Any],
    ref: CallRef,
    context: CallContext,
    call: ParsedCall,
    prepared: Prepared | None = None,
) -> NewEffect:
    """Return the effect to insert; without ``prepared`` its request is the parsed arguments.

    Raises:
        InvalidRequest: the request can't be written as canonical JSON.
    """
    request = call.values
    if prepared is not None:
        # The call's own values have been: its key is made of them.
        request = prepared.request
        canonical_json(request)
    policy = call_policy(
        card_of(tool), context.policies, wanted_again=context.occurrence > 1 and not tool.repeatable
    )
    title = sentence(tool.says, dict(call.arguments))
    identity = None if prepared is None else prepared.identity
    if identity is None and tool.identity is not None:
        identity = tool.identity(call.arguments)
    # Index entries are bounded, and a name that is cut could be two.
    identity = None if identity is None else bounded_name(identity, limit=500)
    touched = () if tool.resources is None else tool.resources(call.arguments)
    repeat, limits = tool.repeat, tool.limits
    return NewEffect(
        tool=tool.name,
        system=tool.system,
        identity=identity,
        arguments=call.values,
        arguments_digest=digest(call.values),
        occurrence=context.occurrence,
        key=call.key,
        request=request,
        resources=tuple(map(bounded_name, touched)),
        plan=call_plan(tool, ref.index, call.arguments, held=policy.holds),
        policy=policy,
        confirm=limits.confirm,
        shown_digest=_shown(tool, call, request, identity, title),
        read_version=None if prepared is None else version_name(prepared.version),
        reversible=tool.reversible,
        keyed=tool.keyed,
        can_look_up=tool.lookup is not None,
        can_check_undone=tool.check_undone is not None,
        on_unknown=OnUnknown(tool.on_unknown),
        halts=tool.on_undo_failure == "halt",
        key_dies_with_undo=isinstance(repeat, Keyed) and repeat.dies_with_undo,
        undo_keyed=isinstance(tool.undo_repeat, Keyed),
        key_life_ms=ms(repeat.lifetime) if isinstance(repeat, Keyed) else None,
        send_by_ms=ms(limits.send_by),
        landing_ms=ms(limits.landing_window),
        max_sends=limits.sends if tool.keyed else 1,
        max_undo_sends=limits.undo_sends,
        title=title,
        no_undo_reason=tool.irreversible_because,
    )


def refreshed(
    tool: EffectTool[Any], row: EffectRow, arguments: BaseModel, prepared: Prepared | None
) -> Refreshed:
    """Return what takes the place of an effect's request, prepared anew; nothing else of it changes.

    Raises:
        InvalidRequest: the request can't be written as canonical JSON.
    """
    values = arguments.model_dump(mode="json")
    request = load_object(row.request) if prepared is None else prepared.request
    canonical_json(request)
    call = ParsedCall(arguments, values, row.key)
    return Refreshed(
        request=request,
        shown_digest=_shown(tool, call, request, row.identity, row.title),
        read_version=row.read_version if prepared is None else version_name(prepared.version),
    )


def version_name(version: str | None) -> str | None:
    """Return what a tool read as its version, in the form in which it is stored and compared."""
    return None if version is None else bounded_name(version)


def _shown(
    tool: EffectTool[Any], call: ParsedCall, request: Mapping[str, Any], identity: str | None, title: str
) -> str:
    """Return the digest that an answer must name: of all that a person may go by, and of what is sent."""
    return digest(
        {
            "arguments": call.values,
            "identity": identity,
            "request": request,
            "title": title,
            "tool": tool.name,
        }
    )
