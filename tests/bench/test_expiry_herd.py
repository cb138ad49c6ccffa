"""A herd of approvals that end at once is ended, and clicks go on beside it."""

from __future__ import annotations

from bench.expiry_herd import measure, report
from tests.streams import audit_entries
from twokey.gateway.approvals.events import EventName
from twokey.gateway.store.store import Store


async def test_a_herd_ends_within_its_time_while_people_click(store: Store) -> None:
    herd = await measure(store, count=300, clicks=20)

    keys = store.keys_of_tenant("default")
    entries = await audit_entries(store.conn, keys)
    expired = [one.item for one in entries if one.name is EventName.ITEM_EXPIRED]
    assert len(set(expired)) == len(expired) == 300
    assert len(herd.during_ms) == 20
    assert herd.seconds < 20
    assert "300 approvals due in one second" in report(herd)
