"""How the workflow of a turn is started: the same by a web tier and by the sweeper."""

from datetime import timedelta
from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from turnsaga import names
from turnsaga.ledger import TurnState
from turnsaga.models import AbortSignal, TurnStart

__all__ = ["SEARCH_ATTRIBUTES", "ensure_search_attributes", "start_turn_workflow"]

_STATUS: Final = SearchAttributeKey.for_keyword(names.TURN_STATUS)
_CONVERSATION: Final = SearchAttributeKey.for_keyword(names.CONVERSATION_ID)
_ATTENTION: Final = SearchAttributeKey.for_bool(names.NEEDS_ATTENTION)
SEARCH_ATTRIBUTES: Final = {
    names.TURN_STATUS: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    names.CONVERSATION_ID: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    names.NEEDS_ATTENTION: IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
}
"""The search attributes that turns carry, and their types."""


async def start_turn_workflow(
    client: Client,
    start: TurnStart,
    *,
    task_queue: str,
    aborted: bool = False,
    rpc_timeout: timedelta | None = None,
) -> None:
    """Start the turn's workflow, or find it started: one turn has one workflow, ever.

    With ``aborted`` its first task already finds the abort signal.
    """
    state = TurnState.QUEUED if start.queued else TurnState.RUNNING
    try:
        await client.start_workflow(
            names.TURN_WORKFLOW,
            start,
            id=start.turn,
            task_queue=task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            start_signal=names.ABORT if aborted else None,
            start_signal_args=[AbortSignal()] if aborted else [],
            static_summary="agent turn",
            static_details="Its effects are in the table of current details, and in the ledger. "
            "Request Cancellation settles the turn: what it did is undone in reverse order.",
            search_attributes=TypedSearchAttributes(
                [
                    SearchAttributePair(_STATUS, state.value),
                    SearchAttributePair(_CONVERSATION, start.conversation),
                    SearchAttributePair(_ATTENTION, value=False),
                ]
            ),
            rpc_timeout=rpc_timeout,
        )
    except WorkflowAlreadyStartedError:
        return


async def ensure_search_attributes(client: Client) -> None:
    """Register the search attributes that turns carry, where the server lets us.

    Raises:
        RPCError: they are missing and can't be added with this client's rights.
    """
    operator = client.operator_service
    listed = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in listed.custom_attributes}
    if not missing:
        return
    try:
        await operator.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise
