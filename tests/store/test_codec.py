"""A stored record is read back unchanged."""

from __future__ import annotations

from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, ServiceHarness
from tests.store_secrets import SECRETS
from tests.stored_records import document


async def test_a_record_is_one_document_and_is_read_as_it_was_written(
    store: Store,
) -> None:
    harness = ServiceHarness(store)
    click, _ = await harness.refund()
    edit = Edit(args={"amount": 4}, reason="less")
    await harness.reviews.decide(click, edit, ANA)
    mine = await store.approvals.load(click.approval)
    other = Store(store.conn.url, secrets=SECRETS)

    theirs = await other.approvals.load(click.approval)

    await other.close()
    assert mine is not None
    assert theirs is not None
    assert theirs.approval == mine.approval
    found = await document(store.conn, store.keys_of_tenant("default"), click.approval)
    # What its key, its action and the fields of the head have is not repeated.
    assert not found.keys() & {"id", "rev", "expires_at_ms"}
    assert not found["items"][0].keys() & {"id", "ctx", "tool", "state"}
