"""A security event is reported once in the log, the audit log and a channel."""

from __future__ import annotations

import logging

import pytest

from keyturn.gateway.approvals.events import (
    Event,
    EventName,
    SecurityEvent,
    SecurityKind,
)
from keyturn.gateway.metrics.report import Metrics
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.sealing import SecurityEvents
from keyturn.gateway.store.store import Store
from tests.service.audit_harness import Clock

TENANT = "default"
FOUND = SecurityEvent(
    kind=SecurityKind.SEAL_WRONG,
    tenant=TENANT,
    about="verdicts",
    agent="support",
    thread="t1",
    approval="ap_default_" + "0" * 32,
    key_id="c0ffee00",
    evidence="1",
)


async def _audited(store: Store) -> list[Event]:
    return [event async for event in security_events(store, TENANT)]


async def _announced(store: Store, keys: Keys) -> list[Event]:
    outbox = store.outbox(keys, reader="tests")
    await outbox.prepare()
    await store.conn.command("XGROUP SETID", keys.outbox, "tests", "0")
    return await outbox.take("one", block_ms=1)


async def test_a_finding_is_in_the_log_the_audit_log_and_the_outbox(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    keys = store.keys_of_tenant(TENANT)

    with caplog.at_level(logging.ERROR):
        await store.security.report(keys, FOUND)

    [logged] = await _audited(store)
    [announced] = await _announced(store, keys)
    assert logged.name is announced.name is EventName.SECURITY_DETECTED
    assert (logged.reason, logged.approval) == ("seal_wrong", FOUND.approval)
    assert logged.data == {"about": "verdicts", "key": "c0ffee00"}
    # It is a separate message: the card of the approval may be forged.
    assert (announced.approval, announced.data["approval"]) == ("", FOUND.approval)
    [line] = [one for one in caplog.messages if "security.detected" in one]
    assert "kind=seal_wrong" in line
    assert "about=verdicts" in line
    assert store.security.counts == {SecurityKind.SEAL_WRONG: 1}


async def test_the_same_is_told_once_by_all_processes(store: Store) -> None:
    keys = store.keys_of_tenant(TENANT)
    other = SecurityEvents(store.conn)

    for reporter in (store.security, other, store.security):
        await reporter.report(keys, FOUND)

    assert len(await _audited(store)) == 1


async def test_nobody_else_can_say_that_a_finding_was_told(store: Store) -> None:
    keys = store.keys_of_tenant(TENANT)
    mark = keys.security(FOUND.model_dump_json())
    await store.conn.command("SET", mark, "1", "EX", 600)

    await store.security.report(keys, FOUND)

    assert len(await _audited(store)) == 1


async def test_a_flood_posts_three_and_then_how_many_more(store: Store) -> None:
    keys, clock = store.keys_of_tenant(TENANT), Clock()
    reporter = SecurityEvents(store.conn, clock=clock)

    for number in range(1000):
        await reporter.report(keys, FOUND.with_(evidence=str(number)))
    before = len(await _announced(store, keys))
    clock.now += 601
    await reporter.tell_left()
    await reporter.tell_left()

    announced = await _announced(store, keys)
    assert (before, len(announced)) == (3, 4)
    assert announced[-1].data == {"count": "997"}
    audited = await _audited(store)
    assert len(audited) == 21
    metrics = Metrics()
    for event in audited:
        metrics.add(event)
    assert metrics.security == {"seal_wrong": 1000}
    assert reporter.counts[SecurityKind.SEAL_WRONG] == 1000


async def test_tried_keys_do_not_hide_a_forgery(store: Store) -> None:
    keys, clock = store.keys_of_tenant(TENANT), Clock()
    reporter = SecurityEvents(store.conn, clock=clock)
    tried = FOUND.with_(kind=SecurityKind.KEY_REFUSED, about="api_key")

    for number in range(100):
        await reporter.report(keys, tried.with_(name=str(number)))
    for number in range(30):
        await reporter.report(keys, FOUND.with_(evidence=str(number)))
    before = len(await _announced(store, keys))
    clock.now += 601
    await reporter.tell_left()

    announced = await _announced(store, keys)
    assert (before, len(announced)) == (3, 4)
    assert {one.reason for one in announced} == {"seal_wrong"}
    assert announced[-1].data == {"count": "27"}
    audited = [one.reason for one in await _audited(store)]
    assert (audited.count("seal_wrong"), audited.count("key_refused")) == (21, 21)


async def test_what_anybody_can_cause_is_audited_and_not_posted(store: Store) -> None:
    keys = store.keys_of_tenant(TENANT)

    silent = [kind for kind in SecurityKind if not kind.is_announced]
    for kind in silent:
        await store.security.report(keys, FOUND.with_(kind=kind))

    assert len(silent) == 6
    assert [one.reason for one in await _audited(store)] == silent
    assert await _announced(store, keys) == []


async def test_an_absent_store_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    away = Store("unix:///nowhere/at/all", secrets=(b"s" * 32,))

    await away.security.report(away.keys_of_tenant(TENANT), FOUND)

    assert any("security.not_recorded" in one for one in caplog.messages)
    await away.close()
