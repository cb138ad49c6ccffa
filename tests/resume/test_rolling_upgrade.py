"""Two versions work side by side on one store: nothing is lost, doubled, set aside."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.newer_version import become_newer
from tests.resume import sample_tools
from tests.resume.processes import worker
from tests.resume.resume_stack import Stack, open_stack
from tests.store_secrets import SECRETS
from tests.streams import announced
from twokey.gateway.approvals.events import EventName
from twokey.gateway.errors import NewerRecord
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store import codec
from twokey.gateway.store.connection import text
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.store import Store

pytestmark = pytest.mark.xdist_group("upgrade")

THREADS = 6


def refund(thread: str) -> tuple[str, dict[str, object]]:
    return "refund", {"order": thread, "amount": 1}


@pytest.fixture
async def shared(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give a gateway on a file of checkpoints that other processes use as well."""
    quick = Store(store.conn.url, secrets=SECRETS, lease_ms=1000)
    async with open_stack(quick, tmp_path / "shared.db") as opened:
        yield opened
    await quick.close()


async def format_of(stack: Stack, approval: str) -> int:
    head = stack.keys.head(approval)
    return int(text(await stack.store.conn.command("HGET", head, "format")))


async def has_run(thread: str) -> bool:
    return any(thread in line for line in sample_tools.ledger())


async def nothing_set_aside(stack: Stack) -> bool:
    """Say that no job is a dead letter, and no record is quarantined."""
    names = {one.name for one in await announced(stack.store.conn, stack.keys)}
    dead = await stack.store.queue(stack.keys).dead_letters()
    return not dead and EventName.RECORD_QUARANTINED not in names


async def test_calls_of_both_versions_run_once_while_both_work(
    shared: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = ([f"{age}{n}" for n in range(THREADS)] for age in ("old", "new"))
    file = tmp_path / "shared.db"
    async with worker(shared.store.conn.url, file) as older:
        for thread in old:
            await shared.ask(refund(thread), thread=thread)
        items = {thread: (await shared.asked(thread=thread))[0] for thread in old}
        become_newer(monkeypatch)
        async with shared.working():
            for thread in new:
                await shared.ask(refund(thread), thread=thread)
            for thread in new:
                [items[thread]] = await shared.asked(thread=thread)
                approval = items[thread].id.rpartition(".")[0]
                assert await format_of(shared, approval) == codec.FORMAT

            for item in items.values():
                await shared.decide(item)

            for thread in (*old, *new):
                assert f"refunded {thread}" in await shared.words(thread=thread)
            await shared.idle()
        assert older.returncode is None

    done = sorted(line.split()[1] for line in sample_tools.ledger())
    assert done == sorted([*old, *new])
    assert await nothing_set_aside(shared)


async def test_after_going_back_newer_calls_wait_for_the_newer_version(
    shared: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        become_newer(newer)
        async with shared.working():
            await shared.ask(refund("t1"), thread="t1")
            [item] = await shared.asked(thread="t1")
            await shared.ask(refund("t2"), thread="t2")
            [brief] = await shared.asked(thread="t2")
        # Decided in the last moment: its job is left for whoever comes next. The other
        # one's time is over.
        await shared.decide(item)
        late = brief.id.rpartition(".")[0]
        await shared.store.conn.transaction(
            ["HSET", shared.keys.head(late), "expires", 1],
            ["ZADD", shared.keys.expiry, 1, shared.keys.listed(late)],
        )
        await shared.say("hello", thread="t3")

    async with worker(shared.store.conn.url, tmp_path / "shared.db"):
        await shared.ask(refund("t4"), thread="t4")
        [other] = await shared.asked(thread="t4")
        await shared.decide(other)
        await eventually(lambda: has_run("t4"))
        with pytest.raises(NewerRecord):
            await shared.store.approvals.load(item.id.rpartition(".")[0])
        assert await shared.store.queue(shared.keys).depth() >= 1

    with monkeypatch.context() as newer:
        become_newer(newer)
        async with shared.working():
            assert "refunded t1" in await shared.words(thread="t1")
            assert "You said hello" in await shared.words(thread="t3")
            assert await shared.words(thread="t2")
            await shared.idle()
        [ended] = await shared.items(thread="t2")
        assert (ended.id, ended.state) == (brief.id, ItemState.EXPIRED)
        assert await nothing_set_aside(shared)
    assert [line.split()[1] for line in sample_tools.ledger()] == ["t4", "t1"]


async def test_an_event_of_a_newer_version_is_left_to_a_reader_of_it(
    shared: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = shared.store.outbox(shared.keys, reader="slack:default")
    await outbox.prepare()
    with monkeypatch.context() as newer:
        become_newer(newer)
        scope = FreezeScope(kind=ScopeKind.AGENT, name="shop")
        await shared.reviews.freezes.freeze(scope, "T0/U0ANA", "wrong refunds")

    assert await outbox.take("old", block_ms=1) == []
    assert await outbox.left("old") == ([], "")
    assert outbox.corrupt == 0

    become_newer(monkeypatch)
    [event], _ = await outbox.left("new")
    assert event.name is EventName.FREEZE_SET
