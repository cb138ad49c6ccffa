"""'keyturn outbox' lists the readers, and drops one that is gone for good."""

from __future__ import annotations

from datetime import timedelta

import pytest

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.store.events import readers
from keyturn.gateway.store.store import Store
from tests.cli.conftest import Shell

AWAY, HERE = "slack:away", "slack:default"


async def two_readers(store: Store) -> None:
    """One reader is away, and one read everything a moment ago."""
    keys = store.keys_of_tenant("default")
    away, here = (store.outbox(keys, reader=name) for name in (AWAY, HERE))
    for one in (away, here):
        await one.prepare()
    for _ in range(3):
        await away.put(Event(name=EventName.RUN_FINISHED, tenant="default"))
    await here.done(*(event.seq for event in await here.take("c", block_ms=1)))


def test_readers_are_listed_with_what_they_have_not_read(
    operator: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.do(two_readers)

    rows = operator.found("outbox", "list")
    told = operator.said("outbox", "list")

    assert [(row["reader"], row["unread"]) for row in rows] == [(AWAY, 3), (HERE, 0)]
    assert rows[0]["idle_ms"] is None
    assert "has 3 events" in told
    assert f"{AWAY}: 3 not acknowledged, never read" in told
    assert "keyturn outbox drop" not in told

    monkeypatch.setattr(readers, "MANY", 2)
    # As if these events were older than the retention for idle readers.
    monkeypatch.setattr(readers, "_KEPT", timedelta(minutes=-1))
    told = operator.said("outbox", "list")
    assert "'keyturn outbox drop' if it is gone for good" in told


def test_a_reader_that_is_gone_is_dropped_and_one_in_use_is_not(
    operator: Shell,
) -> None:
    operator.do(two_readers)

    assert f"{AWAY} is dropped" in operator.said("outbox", "drop", AWAY)
    assert "stop it first" in operator.refused("outbox", "drop", HERE)
    assert f"There is no reader '{AWAY}'" in operator.refused("outbox", "drop", AWAY)
    assert [row["reader"] for row in operator.found("outbox", "list")] == [HERE]
