"""An auto-approved call takes one round trip, in any state of its thread."""

from __future__ import annotations

import pytest

from keyturn.gateway.protocol.wire import VerdictKind
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness


@pytest.fixture
def trips(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note every round trip to the store from here on."""
    made: list[str] = []

    def noting(name: str) -> None:
        call = getattr(store.conn, name)

        async def noted(*words: object, **options: object) -> object:
            made.append(name)
            return await call(*words, **options)

        monkeypatch.setattr(store.conn, name, noted)

    for name in ("command", "transaction", "evalsha"):
        noting(name)
    return made


async def test_an_auto_approved_call_takes_one_round_trip(
    store: Store, trips: list[str]
) -> None:
    harness = ServiceHarness(store)
    await harness.submit(("look_up_order", {}))  # scripts are loaded by the first one
    trips.clear()

    _, verdicts = await harness.submit(("look_up_order", {}), thread="t2")

    assert verdicts[0].kind is VerdictKind.RUN
    # The requester is recorded first, in two; that is the desk's own.
    assert trips == ["command", "evalsha", "evalsha"]


async def test_what_waits_around_and_beside_an_agent_costs_nothing(
    store: Store, trips: list[str]
) -> None:
    harness = ServiceHarness(store)
    for ns in ("", "tools:1", "tools:2", "tools:9|1"):
        await harness.submit(("process_refund", {"amount": 1}), ns=ns)
    trips.clear()

    await harness.submit(("look_up_order", {}), ns="tools:9")

    assert len(trips) == 3
