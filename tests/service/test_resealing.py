"""What a replaced secret sealed, and nothing writes again, holds without it as well."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest

from tests.service.harness import ANA, BEN
from tests.store_secrets import SECRETS
from twokey.gateway.service.delegating import DelegationService
from twokey.gateway.service.freezing import FreezeService
from twokey.gateway.service.resealing import reseal
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.store import Store

NEW = (b"the secret that takes its place.",)
REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
HOUR = timedelta(hours=1)


@asynccontextmanager
async def process(
    url: str, secrets: Sequence[bytes], *, is_split: bool = False
) -> AsyncGenerator[Store]:
    """Return the store as a process with other secrets has it."""
    async with AsyncExitStack() as stack:
        store = (
            Store(url, secrets=secrets, shards=3, split=["default"])
            if is_split
            else Store(url, secrets=secrets)
        )
        stack.push_async_callback(store.close)
        yield store


@pytest.mark.parametrize("is_split", [False, True])
async def test_freezes_and_delegations_hold_when_the_old_secret_is_gone(
    store: Store, *, is_split: bool
) -> None:
    url = store.conn.url
    async with process(url, SECRETS, is_split=is_split) as before:
        await FreezeService(before).freeze(REFUNDS, "T0/U0ANA", "wrong amounts")
        await DelegationService(before).delegate(ANA.person, BEN.person.user, HOUR)
    async with process(url, (*NEW, *SECRETS), is_split=is_split) as both:
        await reseal(both, "default")
    async with process(url, NEW, is_split=is_split) as after:
        [freeze] = await FreezeService(after).frozen()
        [given] = await DelegationService(after).given_to(BEN.person.user)

        assert (freeze.scope, freeze.reason) == (REFUNDS, "wrong amounts")
        assert given.user == ANA.person.user
        assert not after.security.counts


async def test_nothing_is_written_where_the_secret_in_use_sealed_it(
    store: Store,
) -> None:
    async with process(store.conn.url, (*NEW, *SECRETS)) as both:
        await FreezeService(both).freeze(REFUNDS, "T0/U0ANA", "wrong amounts")
        keys = both.keys_of_tenant("default")
        before = await both.conn.command("GET", f"{keys.frozen('default')}_sealed")

        await reseal(both, "default")

        after = await both.conn.command("GET", f"{keys.frozen('default')}_sealed")
        assert before == after


async def test_what_nobody_sealed_is_not_sealed_by_it(store: Store) -> None:
    async with process(store.conn.url, SECRETS) as before:
        await FreezeService(before).freeze(REFUNDS, "T0/U0ANA", "wrong amounts")
        keys = before.keys_of_tenant("default")
        name = f"{keys.frozen('default')}_sealed"
        await before.conn.command("SET", name, b"\x1d" + bytes(16) + b"{}")
        row = f"{'0' * 32} 1 U0BEN 99999999999999"
        await before.conn.command("HSET", keys.delegations("default"), "U0EVE", row)
        await before.conn.command("PEXPIRE", keys.delegations("default"), 60_000)
    async with process(store.conn.url, (*NEW, *SECRETS)) as both:
        await reseal(both, "default")

        frozen = await FreezeService(both).frozen()
        assert ScopeKind.TENANT in {one.scope.kind for one in frozen}
        assert await DelegationService(both).given_to("U0BEN") == ()


async def test_a_row_that_changed_meanwhile_is_left_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process(store.conn.url, (*NEW, *SECRETS)) as both:
        delegations = DelegationService(both)
        key = both.keys_of_tenant("default").delegations("default")
        async with process(store.conn.url, SECRETS) as before:
            await DelegationService(before).delegate(ANA.person, "U0BEN", HOUR)
        command = both.conn.command

        async def then_taken_back(*words: str) -> object:
            found = await command(*words)
            if words == ("HGETALL", key):
                await delegations.take_back(ANA.person)
            return found

        monkeypatch.setattr(both.conn, "command", then_taken_back)
        await reseal(both, "default")

        assert await delegations.given_to("U0BEN") == ()


async def test_a_store_that_is_away_stops_no_start() -> None:
    async with process("unix:///nowhere/at/all", (*NEW, *SECRETS)) as away:
        await reseal(away, "default")
