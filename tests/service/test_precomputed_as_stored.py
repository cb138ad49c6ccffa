"""What is in the store after an approval is the same, precomputed or not."""

from __future__ import annotations

import re
from typing import cast

import pytest

from tests.service.harness import ANA, POLICY, ServiceHarness
from tests.service.showing import shown
from tests.store_secrets import SECRETS
from twokey.gateway.approvals.decisions import Approve, Decided, Gesture
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.store.connection import Connection, text
from twokey.gateway.store.store import Store

PRESSED = ANA.with_(gesture=Gesture.BUTTON, membership_age_ms=1234)
NAMED = POLICY.replace(
    "process_refund: {tier: approve}",
    "process_refund: {tier: approve, same_by: args.order}",
)
COUNTED = (
    NAMED + "windows:\n  spent: {tools: process_refund, sum: args.amount, within: 1h}\n"
)

_READ = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "list": ("LRANGE", 0, -1),
    "set": ("SMEMBERS",),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    "stream": ("XRANGE", "-", "+"),
}
_OF_THE_MOMENT = re.compile(
    rb"1[0-9]{12}(-[0-9]+)?"
    rb'|(?<="waited_ms":")[0-9]+(?=")'
    rb'|(?<="sig":")[A-Za-z0-9+/]{86}==(?=")'
)
_SEALS = {b"h", b"s"}
"""Of a record, and of an event."""


async def everything(conn: Connection) -> dict[bytes, tuple[int, bytes]]:
    """Return how long each key of a store lives, and what it holds, as its DUMP."""
    names = cast("list[bytes]", await conn.command("KEYS", "*"))
    found: dict[bytes, tuple[int, bytes]] = {}
    for name in names:
        lives_ms = cast("int", await conn.command("PTTL", name))
        dump = cast("bytes", await conn.command("DUMP", name))
        found[name] = max(0, lives_ms), dump
    return found


async def put_back(conn: Connection, kept: dict[bytes, tuple[int, bytes]]) -> None:
    """Make a store hold what it held."""
    await conn.command("FLUSHDB")
    for name, (lives_ms, dump) in kept.items():
        await conn.command("RESTORE", name, lives_ms, dump)


async def plain(conn: Connection) -> dict[bytes, object]:
    """Return what each key of a store holds, but for when it was written."""
    names = cast("list[bytes]", await conn.command("KEYS", "*"))
    found: dict[bytes, object] = {}
    for name in sorted(names):
        verb, *more = _READ[text(await conn.command("TYPE", name))]
        value = await conn.command(str(verb), name, *more)
        found[name] = without_moment(value)
    return found


def without_moment(value: object) -> object:
    """Return a reply without moments, and without what is made of them."""
    match value:
        case bytes():
            return _OF_THE_MOMENT.sub(b"~", value)
        case dict():
            members = cast("dict[bytes, object]", value)
            return {
                name: without_moment(one)
                for name, one in members.items()
                if name not in _SEALS
            }
        case list() | tuple():
            return [without_moment(one) for one in cast("list[object]", value)]
        case float():
            return _OF_THE_MOMENT.sub(b"~", f"{value:.0f}".encode())
        case _:
            return value


@pytest.mark.parametrize(
    "policy", [POLICY, NAMED, COUNTED], ids=["plain", "named", "counted"]
)
@pytest.mark.parametrize("count", [1, 3])
async def test_what_is_stored_is_the_same(
    valkey_url: str, store: Store, policy: str, count: int
) -> None:
    harness = ServiceHarness(store, load_policy(policy, "policy.yml"))
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"amount": n + 1, "order": f"o{n}"}) for n in range(count)
    ]
    click = (await shown(harness, *calls)).with_(request_digest="sha256:" + "a" * 64)
    as_shown = harness.reviews.as_shown
    before, names = await everything(store.conn), set(await plain(store.conn))

    as_shown.precompute(click.approval)
    assert await as_shown.approve(click, PRESSED)
    precomputed = await plain(store.conn)
    await put_back(store.conn, before)
    assert set(await plain(store.conn)) == names
    # Another process, which has not seen that the approval had come further.
    other = Store(valkey_url, secrets=SECRETS, lease_ms=2000)
    other.keyring = store.keyring
    reviews = ServiceHarness(other, harness.policy).reviews
    assert isinstance(await reviews.decide(click, Approve(), PRESSED), Decided)
    decided = await plain(store.conn)
    await other.close()

    assert len(precomputed) > 10
    assert precomputed == decided
