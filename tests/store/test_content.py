"""An outcome's content can't make its storing fail, and a receipt is there whole for the undo."""

import json
import random
from typing import Any

import pytest

from tests.store.ledgers import ADA, Ledger
from tests.workflows.hostile import LARGE, VALUES
from turnsaga.keys import bounded_name
from turnsaga.ledger import State
from turnsaga.models import EffectRef, TurnRef
from turnsaga.store import CommitOutcome, UndoOutcome, load_object


async def _committed(ledger: Ledger, receipt: Any, result: object) -> EffectRef:
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    outcome = CommitOutcome(applied=True, receipt=receipt, result=result)
    row = await ledger.store.record_commit(claim.row.ref, claim.row.token, outcome)
    assert row.state is State.COMMITTED
    return claim.row.ref


def _strict(stored: str | None) -> Any:
    """Read as any other reader of JSON would."""

    def refused(word: str) -> None:
        raise AssertionError(f"{word} isn't JSON")

    return json.loads(stored or "null", parse_constant=refused)


async def test_whatever_a_commit_returns_is_stored_as_json_and_its_receipt_s_own_parts_stay(
    ledger: Ledger,
) -> None:
    for kind, made in VALUES.items():
        effect = await _committed(ledger, {"id": "ch_1", "odd": made()}, made())
        row = await ledger.store.load_effect(effect)
        receipt = _strict(row.receipt)

        assert receipt["id"] == "ch_1", kind
        assert load_object(row.receipt) == receipt, kind
        assert len(row.result or "") < 300_000, kind
        _strict(row.result)


async def test_receipt_that_is_no_object_is_stored_all_the_same(ledger: Ledger) -> None:
    for kind, made in VALUES.items():
        effect = await _committed(ledger, made(), None)
        row = await ledger.store.load_effect(effect)

        assert isinstance(_strict(row.receipt), dict), kind


async def test_receipt_is_stored_whole_whatever_its_size(ledger: Ledger) -> None:
    receipt = {
        "id": "ch_1",
        "raw": LARGE,
        "text": "a\x00b\ud83d\U0001f600",
        "parts": [{"n": n} for n in range(99)],
    }
    effect = await _committed(ledger, receipt, None)
    row = await ledger.store.load_effect(effect)

    assert load_object(row.receipt) == receipt


async def test_whatever_shows_an_undo_is_stored(ledger: Ledger) -> None:
    for kind, made in VALUES.items():
        effect = await _committed(ledger, {"id": "ch_1"}, None)
        await ledger.fence(TurnRef(tenant=effect.tenant, turn=effect.turn))
        claim = await ledger.store.claim_undo(effect)
        undone = UndoOutcome(undone=True, evidence={"odd": made()})
        stored = await ledger.store.record_undo(effect, claim.row.token, undone)

        assert stored.row.state is State.COMPENSATED, kind
        _strict((await ledger.store.load_effect(effect)).evidence)


@pytest.mark.parametrize("error", [LARGE, "a\x00b\ud83d", ""], ids=["3 MB", "unwritable", "empty"])
@pytest.mark.parametrize("applied", [None, False])
async def test_whatever_an_error_says_is_stored_and_shown(
    ledger: Ledger, error: str, *, applied: bool | None
) -> None:
    ref = await ledger.turn()
    claim = await ledger.claim(ref)
    assert claim.row is not None
    outcome = CommitOutcome(applied=applied, error=error)
    row = await ledger.store.record_commit(claim.row.ref, claim.row.token, outcome)
    page = await ledger.store.event_page(ADA, ref.turn, after=0)

    assert row.state is (State.UNKNOWN if applied is None else State.FAILED)
    assert (row.error or "").encode() is not None
    assert len(row.error or "") <= 4000
    json.dumps(page.events[-1].data, ensure_ascii=False).encode()


async def test_names_of_any_length_and_content_fit_into_the_ledger_s_indexes(ledger: Ledger) -> None:
    """Postgres takes no entry over some 2,700 bytes; random text can't be compressed below that."""
    chance = random.Random(7)
    odd = ["".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(10_000)), "\x00\ud800" * 50]
    for name in odd:
        ref = await ledger.turn()
        effect = await ledger.commit(
            ref,
            identity=bounded_name(name, limit=500),
            resources=(bounded_name(name),),
            read_version=bounded_name(name),
        )
        row = await ledger.store.load_effect(effect)

        assert row.identity == bounded_name(name, limit=500)
        assert row.read_version == bounded_name(name)
