"""The same call again joins one earlier call whose caller has left."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.gateway.store.http.left_calls import LeftCalls
from keyturn.gateway.store.store import Store


async def test_of_two_callers_that_read_the_same_list_each_joins_another_call(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, read = LeftCalls(store, tenant="default"), store.conn.transaction
    for call in ("left 1", "left 2"):
        await left.hold("place", call, 0)
    between = list[str]()

    async def slowly(*commands: Any) -> Any:
        found = await read(*commands)
        monkeypatch.setattr(store.conn, "transaction", read)
        between.append((await left.earlier("place", "session", "first"))[0])
        return found

    monkeypatch.setattr(store.conn, "transaction", slowly)
    second, _ = await left.earlier("place", "session", "second")

    assert sorted([*between, second]) == ["left 1", "left 2"]
