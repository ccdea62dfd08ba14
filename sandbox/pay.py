"""PAY: charges and refunds on Stripe's wire, for the official client."""

import hashlib
import json
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sandbox import pay_store, truth
from sandbox.calls import Answer, KeyRules, Moment, Op, Operation
from sandbox.errors import Refused
from sandbox.stripe_wire import (
    Clause,
    Form,
    error_answer,
    list_answer,
    new_id,
    object_answer,
    parse_form,
    parse_search,
    refusal,
)
from sandbox.wire import WireRequest

SYSTEM = "pay"

_MAX_AMOUNT = 99_999_999
_MAX_KEY_CHARACTERS = 255
_REASONS = ("duplicate", "fraudulent", "requested_by_customer")
_CHARGE_PARAMS = (
    "amount",
    "currency",
    "customer",
    "description",
    "metadata",
    "receipt_email",
    "source",
    "statement_descriptor",
    "statement_descriptor_suffix",
)


@dataclass(frozen=True, slots=True)
class _Route:
    """What a request does, beside what all requests have."""

    perform: Callable[[Moment], Answer]
    identity: str | None = None
    identity_of: Callable[[sqlite3.Connection], str | None] | None = None


def read(request: WireRequest) -> Operation:
    """Return what a request asks for; one that is refused is an operation that refuses."""
    key = request.headers.get("idempotency-key") or None
    try:
        _authenticate(request)
        if key is not None and len(key) > _MAX_KEY_CHARACTERS:
            raise refusal(None, "Idempotency keys can have up to 255 characters.")
        form = parse_form(
            request.body.decode("utf-8", "replace") if request.method == "POST" else request.query
        )
        route = _route(request, form)
    except Refused as refused:
        answer = refused.answer
        return Operation(_op(request), request.method, request.path, lambda _: answer, _failure, key=key)
    is_keyed = request.method == "POST" and key is not None
    return Operation(
        op=_op(request),
        method=request.method,
        path=request.path,
        perform=route.perform,
        failure=_failure,
        key=key,
        identity=route.identity,
        identity_of=route.identity_of,
        key_rules=_key_rules(request, form, str(key)) if is_keyed else None,
    )


def refund_by_hand(db: sqlite3.Connection, identity: str, now: float) -> bool:
    """Refund what is left of an identity's charges, as someone in the dashboard would.

    Returns whether the identity has any charge.
    """
    charges = pay_store.charges_of(db, identity)
    for charge in charges:
        if amount := pay_store.unrefunded(charge):
            pay_store.add_refund(
                db, charge, amount=amount, reason="requested_by_customer", metadata={}, now=now
            )
    truth.wipe(db, SYSTEM, identity)
    return bool(charges)


def _authenticate(request: WireRequest) -> None:
    token = request.bearer
    if token is None:
        message = "You did not provide an API key; use the Authorization header with Bearer auth."
    elif not token.startswith(("sk_", "rk_")):
        message = "Invalid API Key provided."
    else:
        return
    raise refusal(None, message, status=401)


def _route(request: WireRequest, form: Form) -> _Route:  # one return a route
    match (request.method, *request.segments):
        case ("POST", "v1", "charges"):
            return _create_charge(form)
        case ("GET", "v1", "charges"):
            return _list_charges(form)
        case ("GET", "v1", "charges", "search"):
            return _search_charges(form)
        case ("GET", "v1", "charges", charge_id):
            return _Route(
                partial(_get_charge, charge_id=charge_id),
                identity_of=partial(pay_store.identity_of, charge_id=charge_id),
            )
        case ("POST", "v1", "refunds"):
            return _create_refund(form)
        case ("GET", "v1", "refunds"):
            return _list_refunds(form)
        case ("GET", "v1", "refunds", refund_id):
            return _Route(
                partial(_get_refund, refund_id=refund_id),
                identity_of=partial(pay_store.identity_of_refund, refund_id=refund_id),
            )
        case _:
            message = f"Unrecognized request URL ({request.method}: {request.path})."
            raise refusal(None, message, status=404)


def _op(request: WireRequest) -> Op:
    if request.method == "GET":
        return Op.LOOKUP
    return Op.UNDO if request.segments[:2] == ("v1", "refunds") else Op.APPLY


def _key_rules(request: WireRequest, form: Form, key: str) -> KeyRules:
    params = {"plain": form.plain, "nested": form.nested}
    canonical = json.dumps([request.method, request.path, params], sort_keys=True)
    return KeyRules(
        fingerprint=hashlib.sha256(canonical.encode()).hexdigest(),
        in_use=error_answer(
            409,
            "idempotency_error",
            "idempotency_key_in_use",
            f"There is currently another in-progress request using this Idempotent Key {key!r}.",
        ),
        mismatch=error_answer(
            400,
            "idempotency_error",
            None,
            "Keys for idempotent requests can only be used with the same parameters they were first"
            f" used with. Try using a key other than {key!r} if you meant to execute a different request.",
        ),
    )


def _failure(status: int) -> Answer:
    kind, code = {
        402: ("card_error", "card_declined"),
        409: ("invalid_request_error", "lock_timeout"),
        429: ("invalid_request_error", "rate_limit"),
    }.get(status, ("invalid_request_error" if status < 500 else "api_error", None))
    return error_answer(status, kind, code, f"A knob of the sandbox lets this call fail with {status}.")


def _create_charge(form: Form) -> _Route:
    form.allow(*_CHARGE_PARAMS)
    amount = form.positive("amount")
    if amount > _MAX_AMOUNT:
        message = f"Amount must be no more than {_MAX_AMOUNT} in the currency's smallest unit."
        raise refusal("amount_too_large", message, param="amount")
    currency = form.text("currency").lower()
    if not re.fullmatch(r"[a-z]{3}", currency):
        raise refusal(None, f"Invalid currency: {currency}.", param="currency")
    metadata = form.metadata()
    charge: pay_store.Document = {
        "id": new_id("ch"),
        "object": "charge",
        "amount": amount,
        "amount_captured": amount,
        "amount_refunded": 0,
        "balance_transaction": None,
        "captured": True,
        "currency": currency,
        "customer": form.text("customer"),
        "description": form.plain.get("description"),
        "disputed": False,
        "failure_code": None,
        "failure_message": None,
        "livemode": False,
        "metadata": metadata,
        "paid": True,
        "payment_intent": None,
        "refunded": False,
        "status": "succeeded",
    }
    identity = metadata.get("invoice")
    return _Route(partial(_apply_charge, charge=charge), identity=identity)


def _apply_charge(moment: Moment, charge: pay_store.Document) -> Answer:
    identity = moment.call.identity or str(charge["id"])
    created = {**charge, "created": int(moment.now)}
    pay_store.add_charge(moment.db, identity, created, moment.now)
    truth.log_effect(moment, identity, ref=str(charge["id"]))
    return object_answer(created)


def _get_charge(moment: Moment, charge_id: str) -> Answer:
    charge = pay_store.find_charge(moment.db, charge_id)
    if charge is None:
        raise _missing("charge", charge_id, "id")
    return object_answer(charge)


def _list_charges(form: Form) -> _Route:
    form.allow("customer", "limit", "starting_after")
    limit = _limit(form)
    customer = form.plain.get("customer")
    clauses = (Clause("customer", customer, is_metadata=False),) if customer else ()

    def perform(moment: Moment) -> Answer:
        after = form.plain.get("starting_after") or None
        if after is not None and pay_store.find_charge(moment.db, after) is None:
            raise _missing("charge", after, "starting_after", status=400)
        found = pay_store.search_charges(
            moment.db, clauses, seen_until=moment.seen_until, after=after, limit=limit + 1
        )
        return list_answer("/v1/charges", found, limit)

    return _Route(perform)


def _search_charges(form: Form) -> _Route:
    form.allow("query", "limit", "page")
    limit = _limit(form)
    clauses = parse_search(form.text("query"))
    invoices = [clause.value for clause in clauses if clause.is_metadata and clause.name == "invoice"]

    def perform(moment: Moment) -> Answer:
        found = pay_store.search_charges(
            moment.db,
            clauses,
            seen_until=moment.seen_until,
            after=form.plain.get("page") or None,
            limit=limit + 1,
        )
        has_more = len(found) > limit
        return object_answer(
            {
                "object": "search_result",
                "url": "/v1/charges/search",
                "has_more": has_more,
                "next_page": found[limit - 1]["id"] if has_more else None,
                "data": found[:limit],
            }
        )

    return _Route(perform, identity=invoices[0] if invoices else None)


def _create_refund(form: Form) -> _Route:
    form.allow("charge", "amount", "reason", "metadata")
    charge_id = form.text("charge")
    amount = form.positive("amount") if "amount" in form.plain else None
    reason = form.plain.get("reason") or None
    if reason is not None and reason not in _REASONS:
        raise refusal(None, f"Invalid reason: must be one of {', '.join(_REASONS)}", param="reason")
    metadata = form.metadata()

    def perform(moment: Moment) -> Answer:
        charge = pay_store.find_charge(moment.db, charge_id)
        if charge is None:
            raise _missing("charge", charge_id, "charge")
        left = pay_store.unrefunded(charge)
        if left == 0:
            message = f"Charge {charge_id} has already been refunded."
            raise refusal("charge_already_refunded", message)
        if amount is not None and amount > left:
            message = f"Refund amount ({amount}) is greater than unrefunded amount on charge ({left})"
            raise refusal(None, message, param="amount")
        refund = pay_store.add_refund(
            moment.db, charge, amount=amount or left, reason=reason, metadata=metadata, now=moment.now
        )
        truth.log_change(moment)
        # What is given back in part still stands.
        if refund["amount"] == left:
            truth.undo_ref(moment.db, SYSTEM, charge_id)
        return object_answer(refund)

    return _Route(perform, identity_of=partial(pay_store.identity_of, charge_id=charge_id))


def _get_refund(moment: Moment, refund_id: str) -> Answer:
    refund = pay_store.find_refund(moment.db, refund_id)
    if refund is None:
        raise _missing("refund", refund_id, "id")
    return object_answer(refund)


def _list_refunds(form: Form) -> _Route:
    form.allow("charge", "limit", "starting_after")
    limit = _limit(form)
    charge_id = form.plain.get("charge") or None

    def perform(moment: Moment) -> Answer:
        after = form.plain.get("starting_after") or None
        if after is not None and pay_store.find_refund(moment.db, after) is None:
            raise _missing("refund", after, "starting_after", status=400)
        found = pay_store.list_refunds(
            moment.db, charge_id, seen_until=moment.seen_until, after=after, limit=limit + 1
        )
        return list_answer("/v1/refunds", found, limit)

    identity_of = None if charge_id is None else partial(pay_store.identity_of, charge_id=charge_id)
    return _Route(perform, identity_of=identity_of)


def _limit(form: Form) -> int:
    limit = form.positive("limit", default=10)
    if limit > 100:
        message = "This value must be less than or equal to 100."
        raise refusal("parameter_invalid_integer", message, param="limit")
    return limit


def _missing(kind: str, object_id: str, param: str, *, status: int = 404) -> Refused:
    return refusal("resource_missing", f"No such {kind}: '{object_id}'", status=status, param=param)
