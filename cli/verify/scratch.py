"""A scratch tenant in the user's store: its processes, its calls and an attacker."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pydantic import JsonValue

from keyturn.cli.store_access import open_configured, require_store
from keyturn.gateway.approvals import decisions
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.config import Settings
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol import wire
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.store.connection.connection import Connection, Reply, text
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Keyring, Role

RULES = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0VERIFY, needs: staff}
roles: {staff: {users: [U0ANA, U0BEN]}, senior: {users: [U0CHLOE]}}
requirements:
  two: {all: [{of: [staff, senior]}, {of: senior}]}
  not_the_editor: {of: staff, editor_may_vote: false}
tiers: {escalate: {needs: two}}
tools:
  pay:
    audience: pay_service
    args_schema: {type: object, properties: {amount: {type: number, minimum: 1}}}
    raise: [{to: escalate, when: args.amount > 1000, because: over 1000}]
  pay_soon: {tier: approve, expires_in: 1s, authorization: 1s}
  pay_edited: {tier: approve, needs: not_the_editor}
  wire: {tier: escalate}
  wipe: {tier: deny}
"""
"""Policy of the scratch tenant; the user's policy is proven by itself."""

AMOUNT, PAYEE = 120, "pay_service"
OTHER = "-other"
"""Suffix of the second scratch tenant."""

FOREVER_MS = 2**52
RACERS = 8
"""Tasks or connections that act at the same time."""


def person(user: str) -> decisions.Reviewer:
    """Return a member of the workspace as the bot resolves them."""
    return decisions.Reviewer(
        team="T0VERIFY", user=user, account=decisions.AccountKind.MEMBER
    )


ANA, BEN, CHLOE, DAN = map(person, ("U0ANA", "U0BEN", "U0CHLOE", "U0DAN"))


class Side(NamedTuple):
    """One process of a tenant: a store with empty caches, and its services."""

    store: Store
    agents: AgentService
    reviews: ReviewService


class Scratch:
    """A scratch tenant of the user's store.

    Attributes:
        settings: settings of the user.
        policy: policy of the user.
        store: the store, as this command opened it.
        folder: temporary folder for the audit tree and ledgers.
        attacker: a connection to the store with a secret that is not Keyturn's.
        keyring: temporary signing keys: the user's keys sign no invented decision.
    """

    def __init__(
        self, settings: Settings, policy: Policy, store: Store, opened: AsyncExitStack
    ) -> None:
        self.settings, self.policy, self.store = settings, policy, store
        self.tenant = f"verify-{secrets.token_hex(6)}"
        self.keys = store.keys_of_tenant(self.tenant)
        self.folder = Path(opened.enter_context(TemporaryDirectory()))
        self.attacker = Connection(store.conn.url)
        self.attacker.secrets = (secrets.token_bytes(32),)
        self._opened, self._count = opened, itertools.count()
        self._rules = load_policy(RULES, "verify")
        opened.push_async_callback(self.attacker.close)
        self.keyring = Keyring(self.folder / "keys", makes=Role)
        self.keyring.make_missing(datetime.now(UTC))
        self.main = self.side()

    def side(self, suffix: str = "") -> Side:
        """Start another process of the tenant, or of another scratch tenant."""
        kept, tenant = self.store.conn, self.tenant + suffix
        store, rules = Store(kept.url, secrets=kept.secrets), self._rules
        store.keyring, store.tree_folder = self.keyring, self.folder / "audit"
        store.conn.encrypts, store.conn.confirmed_by = kept.encrypts, kept.confirmed_by
        self._opened.push_async_callback(store.close)
        return Side(
            store,
            AgentService(store, lambda: rules, tenant=tenant),
            ReviewService(store, lambda: rules, tenant=tenant),
        )

    async def ask(
        self, tool: str = "pay", by: Person = DAN.person, **args: JsonValue
    ) -> Call:
        """Submit a call of a new agent in a new thread."""
        agent = thread = f"agent{next(self._count)}"
        ref = wire.TurnRef(agent=agent, thread=thread, message_id="m1")
        facts = ThreadFacts(requester=by)
        await self.main.store.threads.change(
            self.keys, agent, thread, lambda _: facts, why="aside"
        )
        found = {"tool": tool, "args": {"amount": AMOUNT, **args}, "tool_call_id": "c1"}
        turn = wire.Turn.model_validate({"ref": ref, "calls": [found]})
        [verdict] = await self.main.agents.submit(turn)
        named = {"item_id": verdict.item_id, "tool": tool, "tool_call_id": "c1"}
        asked = {"ref": ref, "owner": secrets.token_hex(16), **named}
        return Call(self, wire.ClaimRequest.model_validate(asked))

    async def approved(self, tool: str = "pay", **args: JsonValue) -> Call:
        """Submit a call that Ana approves."""
        call = await self.ask(tool, DAN.person, **args)
        await call.decide()
        return call

    async def now_ms(self) -> int:
        """Return the time of the store."""
        return await self.store.conn.now_ms(self.keys.outbox)

    async def after(self, at_ms: int) -> None:
        """Wait until the store's clock has passed a time."""
        while await self.now_ms() <= at_ms:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Call:
    """A call of the scratch tenant, and the acts of reviewers, agents and attackers."""

    scratch: Scratch
    request: wire.ClaimRequest

    @property
    def id(self) -> str:
        """Return the id of its approval."""
        return self.request.item_id.partition(".")[0]

    async def approval(self) -> Approval:
        """Return its record."""
        loaded = await self.scratch.main.reviews.read(self.id)
        if loaded is None:
            raise LookupError(f"The approval {self.id!r} is gone.")
        return loaded.approval

    async def click(self) -> decisions.Click:
        """Return a click on its current version."""
        found = await self.approval()
        version, hash_ = found.version, found.items[0].action_hash
        return decisions.Click(
            approval=self.id, index=0, version=version, action_hash=hash_
        )

    async def decide(
        self,
        decision: decisions.Decision | None = None,
        by: decisions.Reviewer = ANA,
        click: decisions.Click | None = None,
        side: Side | None = None,
    ) -> decisions.Outcome:
        """Decide it as a reviewer, by default approve it as Ana."""

        async def voters(_: Item) -> list[decisions.Reviewer]:
            return [ANA, BEN, CHLOE]

        reviews = (side or self.scratch.main).reviews
        click, chosen = click or await self.click(), decision or decisions.Approve()
        return await reviews.decide(click, chosen, by, voters=voters)

    async def claim(
        self, side: Side | None = None, **changes: object
    ) -> wire.ClaimReply:
        """Claim it as its executor."""
        agents = (side or self.scratch.main).agents
        return await agents.claim(self.request.with_(**changes))

    @property
    def stored(self) -> tuple[str, str]:
        """Return the keys of its record in the store."""
        keys = self.scratch.keys
        return keys.head(self.id), keys.document(self.id)

    async def copied(self) -> list[Reply]:
        """Copy its stored record as an attacker."""
        return [await self.scratch.attacker.command("DUMP", key) for key in self.stored]

    async def put_back(self, copy: list[Reply]) -> None:
        """Restore a copy of its record as an attacker."""
        for key, body in zip(self.stored, copy, strict=True):
            words = ("RESTORE", key, 0, body if isinstance(body, bytes) else b"")
            await self.scratch.attacker.command(*words, "REPLACE")

    async def authorize_in_store(self) -> None:
        """Set its stored state to authorized as an attacker."""
        changes = ("0:s", "authorized", "0:t", 1, "0:l", FOREVER_MS)
        await self.scratch.attacker.command("HSET", self.stored[0], *changes)


@asynccontextmanager
async def scratch_tenant(settings: Settings, policy: Policy) -> AsyncGenerator[Scratch]:
    """Open the user's store with a new scratch tenant; remove the tenant at the end.

    Raises:
        SettingsError: there is no store yet, or it cannot be used.
        StoreUnavailable: it does not answer.
    """
    require_store(settings)
    # A store that is not durable is a broken guarantee, not an error of the command.
    async with (
        open_configured(settings, insecure_dev=True) as store,
        AsyncExitStack() as opened,
    ):
        scratch = Scratch(settings, policy, store, opened)
        for tenant in (scratch.tenant, scratch.tenant + OTHER):
            opened.push_async_callback(remove, store, tenant)
        yield scratch


_REMOVE = """
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000)
for _, key in ipairs(found[2]) do redis.call('UNLINK', key) end
return found[1]
"""


async def remove(store: Store, tenant: str) -> None:
    """Delete all keys of a scratch tenant."""
    base = store.keys_of_tenant(tenant).head("").removesuffix("a:")
    cursor = "0"
    while True:
        # As a script with a key, it runs on the node of the tenant's keys.
        words = (_REMOVE, 1, base, cursor, f"{base}*")
        cursor = text(await store.conn.command("EVAL", *words))
        if cursor == "0":
            return
