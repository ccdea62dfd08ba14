"""The CRM's tools against a system that isn't there."""

import pytest

from activities.tools.records import Records
from tests.tools.calls import call_within, deaf
from turnsaga.errors import NotApplied


async def test_connection_that_does_not_come_about_proves_that_nothing_was_sent() -> None:
    request = {"kind": "ticket", "id": "1", "fields": {"subject": "hello"}}
    with deaf() as port:
        records = Records(f"http://127.0.0.1:{port}/crm", "token")
        with pytest.raises(NotApplied, match="nothing was sent"):
            await records.create(request, call_within(0.6))
        await records.close()
