"""A request that a failover forgot is replayed, and does not take effect again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest

from keyturn.bot.ids import COMMAND
from keyturn.gateway.errors import NotConfirmed
from keyturn.gateway.store.connection.durability import ensure_durable
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, TEAM, Stack
from tests.bot.signed import post, signed_headers
from tests.panics import failing
from tests.store_secrets import SECRETS
from tests.topologies import Node, SentinelSet, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("topologies")]

TOOL = FreezeScope(kind=ScopeKind.TOOL, name="send_email")


@pytest.fixture
async def stack(sentinel_set: SentinelSet) -> AsyncIterator[Stack]:
    """Give a stack whose store is a Sentinel set."""
    store = Store(sentinel_set.url, secrets=SECRETS, lease_ms=2000)
    await ensure_durable(store.conn)
    async with Sandbox() as sandbox:
        yield Stack(sandbox, store)
    await store.close()


def command(words: str) -> bytes:
    """Return the body of a slash command by Ana."""
    names = {"command": COMMAND, "text": words, "team_id": TEAM, "user_id": "U0ANA"}
    more = {"channel_id": CHANNEL, "response_url": "", "trigger_id": "1.2"}
    return urlencode({**names, **more}).encode()


async def sent(stack: Stack, body: bytes, headers: dict[str, str]) -> str:
    assert stack.bot
    status, answer = await post(stack.bot.url, headers, body)
    assert status == 200
    return answer


def lose_with_the_master(
    stack: Stack, nodes: SentinelSet, patch: pytest.MonkeyPatch
) -> None:
    """Let only a master see the next request, and lose that master at once."""
    real, replicas = stack.store.cards.is_first, list(nodes.servers)
    old = nodes.master()
    replicas.remove(old)
    # One replica confirms a write. The other one may become the next master.
    until(lambda: _has_sent_all(old), "both replicas have all writes")

    def fail_over() -> None:
        old.kill()
        # Resumed, they would read what the kernel has for them.
        for one in replicas:
            one.kill()
            one.start()
        until(lambda: nodes.master() is not old, "another master is there")
        until(lambda: b"good_slaves:0" not in _info(nodes.master()), "it may write")

    async def seen(keys: Keys, digest: str, mine: bytes) -> bool:
        patch.setattr(stack.store.cards, "is_first", real)
        for one in replicas:
            one.pause()
        try:
            return await real(keys, digest, mine)
        finally:
            await asyncio.to_thread(fail_over)

    patch.setattr(stack.store.cards, "is_first", seen)


def _has_sent_all(master: Node) -> bool:
    lines = _info(master).decode().splitlines()
    [sent] = (line.split(":")[1] for line in lines if line.startswith("master_repl_o"))
    return sum(f"state=online,offset={sent}," in line for line in lines) == 2


def _info(node: Node) -> bytes:
    reply = node.ask("INFO", "replication")
    return reply if isinstance(reply, bytes) else b"good_slaves:0"


async def test_a_replayed_unfreeze_ends_no_later_freeze(
    stack: Stack, sentinel_set: SentinelSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = command("unfreeze tool send_email mended")
    headers = signed_headers(stack.sandbox.signing_secret, body)
    freezes = stack.reviews.freezes
    async with stack.running():
        await freezes.freeze(TOOL, "cli/root", "wrong")
        lose_with_the_master(stack, sentinel_set, monkeypatch)
        assert "nothing was recorded" in (await sent(stack, body, headers)).lower()
        assert [one.reason for one in await freezes.frozen()] == ["wrong"]
        # The same delivery again, as Slack repeats it.
        assert "may run again" in await sent(stack, body, headers)
        await freezes.freeze(TOOL, "cli/root", "wrong again")

        answer = await sent(stack, body, headers)

        assert [one.reason for one in await freezes.frozen()] == ["wrong again"]
        assert "may run again" not in answer


async def test_what_no_replica_keeps_does_not_take_effect(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = command("freeze tool send_email wrong")

    async with stack.running():
        failing(monkeypatch, stack.store.conn, "keep", NotConfirmed())
        headers = signed_headers(stack.sandbox.signing_secret, body)

        answer = await sent(stack, body, headers)

        assert "nothing was recorded" in answer
        assert await stack.reviews.freezes.frozen() == ()
        monkeypatch.undo()
        await stack.bot_is_quiet()
        # Another click is another request.
        again = signed_headers(stack.sandbox.signing_secret, body + b"&trigger_id=2.3")
        assert "is frozen" in await sent(stack, body + b"&trigger_id=2.3", again)
