"""One of many processes that write to one ledger: ``python -m tests.store.writer URL TENANT TURN``.

It opens the ledger, says "ready", waits for a line, and tells as JSON what it got: whether its claim of
the turn's first call may send, and whether its fence was the first one.
"""

import asyncio
import json
import sys

from tests.store.ledgers import Clock, Ledger
from turnsaga.models import TurnRef
from turnsaga.store import SqlStore, Verdict

TEXTS = 5


async def main(url: str, tenant: str, turn: str) -> None:
    """Write texts, then claim and fence, as fast as the others let it."""
    store = SqlStore(url, connections=2)
    await store.open()
    ledger, ref = Ledger(store, Clock()), TurnRef(tenant=tenant, turn=turn)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    texts = [await store.append_text(ledger.step(ref), f"{number}") for number in range(TEXTS)]
    claim = await ledger.claim(ref, keyed=False, can_look_up=False, max_sends=1)
    fenced = await ledger.fence(ref)
    told = {"texts": sum(texts), "sends": claim.verdict is Verdict.SEND, "first": fenced.first}
    sys.stdout.write(json.dumps(told) + "\n")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
