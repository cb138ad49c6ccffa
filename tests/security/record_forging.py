"""Write stored records like an attacker who can write to Redis, without a secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from redis.asyncio import Redis

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Claimed, ClaimRequest
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.encryption import packed, unpacked
from tests.service.harness import ServiceHarness, claim_of

AMOUNT, FORGED = 899, 1_000_000


@dataclass
class Victim:
    """An approval of two refunds, and a way to write it without the gateway.

    Attributes:
        harness: the gateway that opened it.
        redis: a connection without seals.
        claims: the claims of an executor for its calls.
        older: its head before its last change.
        older_body: its document at that time.
        others: approvals of others, to copy from.
    """

    harness: ServiceHarness
    redis: Redis
    claims: tuple[ClaimRequest, ...]
    older: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    older_body: bytes = b""
    others: dict[str, ClaimRequest] = field(default_factory=dict[str, ClaimRequest])

    @property
    def id(self) -> str:
        """Return the id of the approval."""
        return self.claims[0].item_id.partition(".")[0]

    @property
    def keys(self) -> Keys:
        """Return the keys of its tenant."""
        return self.harness.store.keys_of_tenant("default")

    async def head(self, approval: str = "") -> dict[bytes, bytes]:
        """Return the stored fields of a head."""
        found = await self.redis.hgetall(self.keys.head(approval or self.id))  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType] - of redis-py
        return cast("dict[bytes, bytes]", found)

    async def body(self, approval: str) -> bytes:
        """Return the document of an approval as it is stored."""
        return cast("bytes", await self.redis.get(self.keys.document(approval)))

    async def put(self, **fields: str | bytes | int) -> None:
        """Write fields; ``i0_s`` is ``0:s``, which is no name in Python."""
        for name, value in fields.items():
            await self.put_field(name.replace("i0_", "0:").replace("i1_", "1:"), value)

    async def put_field(self, name: str, value: str | bytes | int) -> None:
        """Write one field."""
        await self.redis.hset(self.keys.head(self.id), name, value)  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]

    async def drop(self, *names: str) -> None:
        """Delete fields."""
        await self.redis.hdel(self.keys.head(self.id), *names)  # pyright: ignore[reportGeneralTypeIssues]

    async def replace(self, head: dict[bytes, bytes]) -> None:
        """Replace the whole head."""
        key = self.keys.head(self.id)
        await self.redis.delete(key)
        await self.redis.hset(key, mapping=cast("dict[Any, Any]", head))  # pyright: ignore[reportGeneralTypeIssues]

    async def put_back(self, rev: bytes | None = None) -> None:
        """Replace the record by the older one."""
        await self.replace({**self.older, b"rev": rev or self.older[b"rev"]})
        await self.redis.set(self.keys.document(self.id), self.older_body)

    async def document(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the document."""
        key = self.keys.document(self.id)
        body = json.loads(unpacked(await self.body(self.id)))
        change(body)
        await self.redis.set(key, packed(json.dumps(body)))

    async def detail(self, **changes: object) -> None:
        """Change the first call in the document."""
        await self.document(lambda body: body["items"][0].update(changes))

    async def forget_detail(self, name: str) -> None:
        """Take something of the first call out of the document."""
        await self.document(lambda body: body["items"][0].pop(name, None))

    def other_action(self, action: str) -> str:
        """Return an action with another amount."""
        document = json.loads(action)
        document["args"]["amount"] = FORGED
        return digest.canonical(document).decode()


async def asked(harness: ServiceHarness, redis: Redis) -> Victim:
    """Ask people about two refunds on one card, and about one more on another."""
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"amount": AMOUNT + n}) for n in range(2)
    ]
    ref, verdicts = await harness.submit(*calls)
    victim = Victim(harness, redis, tuple(claim_of(ref, one) for one in verdicts))
    victim.older, victim.older_body = (
        await victim.head(),
        await victim.body(victim.id),
    )
    other = await harness.approved(5, thread="other")
    victim.others["authorized"] = other
    return victim


async def authorized(harness: ServiceHarness, redis: Redis) -> Victim:
    """Have the first one approved."""
    victim = await asked(harness, redis)
    await harness.decide(victim.claims[0].item_id, Approve())
    return victim


async def executing(harness: ServiceHarness, redis: Redis) -> Victim:
    """Have the first one approved and started."""
    victim = await authorized(harness, redis)
    victim.older, victim.older_body = (
        await victim.head(),
        await victim.body(victim.id),
    )
    assert isinstance(await harness.agents.claim(victim.claims[0]), Claimed)
    return victim


async def executed(harness: ServiceHarness, redis: Redis) -> Victim:
    """Have the first one approved and run."""
    victim = await executing(harness, redis)
    done = Result(ok=True, summary="refunded", payload="refunded")
    await harness.agents.finish(victim.claims[0].item_id, 1, done)
    return victim
