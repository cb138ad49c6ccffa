"""Run bots in processes of their own on one store, and click on a card in each."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.apart.house import LONG_S, Member
from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.bot_stack import POLICY as PLAIN
from tests.bot.signed import interaction, post, signed_headers
from tests.conftest import eventually
from tests.store_secrets import SECRETS
from tests.streams import audit_entries
from twokey.bot.ids import Action
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.record import Item, approval_of
from twokey.gateway.protocol.wire import Verdict
from twokey.sandbox import payloads
from twokey.sandbox.json_types import JsonObject, as_objects

POLICY = f"{PLAIN}  pay_soon: {{tier: approve, expires_in: 6s}}\n"
ENV = {"PATH": "/usr/bin:/bin"}


@dataclass
class Bot:
    """One bot, which is started, stopped, continued and killed as `Member` is."""

    stack: Stack
    member: Member
    clock: Path
    policy: Path

    @property
    def log(self) -> list[str]:
        """Return what it has said, by lines."""
        log = self.member.log
        return log.read_text("utf-8").splitlines() if log.exists() else []

    @property
    def url(self) -> str:
        """Return where it is reached since it was started last."""
        return [one for one in self.log if one.startswith("http://")][-1]

    async def ready(self) -> None:
        """Wait until it is reached."""
        await self.member.says("http://")

    async def precomputed(self, approval_id: str) -> None:
        """Wait until it has precomputed the calls of an approval with a posted card."""
        # Who draws the card knows what it shows, and computes with that.
        known = "sha256:" if self.has_posted(approval_id) else ""
        await self.member.says(f"precomputed {approval_id} as={known}")

    def has_posted(self, approval_id: str) -> bool:
        """Say whether it has posted the card of an approval."""
        return self.has_said(f"card.posted id={approval_id} ")

    def tried(self, verdict: Verdict) -> list[bool]:
        """Return of each click if what was precomputed was written.

        Its log is copied from a pipe: a line may come after the answer to the click.
        """
        words = f"tried {approval_of(verdict.item_id)[0]} "
        return [one.removeprefix(words) == "True" for one in self.log if words in one]

    async def decided_as_precomputed(self, verdict: Verdict) -> None:
        """Wait until it says that its one click was written as it was precomputed."""
        await self.member.says(f"tried {approval_of(verdict.item_id)[0]} ")
        assert self.tried(verdict) == [True]

    def has_said(self, words: str) -> bool:
        """Say whether something is in its log."""
        return any(words in one for one in self.log)

    async def click(self, *requests: bytes, at: str | None = None) -> list[int]:
        """Send clicks at once; return the status of each answer."""
        secret = self.stack.sandbox.signing_secret
        sent = [
            post(self.url, signed_headers(secret, body, timestamp=at), body)
            for body in requests
        ]
        return [status for status, _ in await asyncio.gather(*sent)]

    def pause(self) -> None:
        """Let it stand still, with its connections open."""
        assert self.member.process
        self.member.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self.member.process
        self.member.process.send_signal(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Let it stand still while the block runs."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def sets_clock(self, ahead_s: float) -> None:
        """Set its time of day."""
        _write(self.clock.with_suffix(".time"), ahead_s)

    def slept_for(self, ahead_s: float) -> None:
        """Move the clock that counts from the start of the machine."""
        _write(self.clock.with_suffix(".boot"), ahead_s)


def _write(file: Path, ahead_s: float) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(str(ahead_s))
    fresh.replace(file)


@dataclass
class Bots:
    """Bots of one workspace.

    Attributes:
        secrets: of those that are started next, the one in use first.
        store: where their store is.
    """

    stack: Stack
    folder: Path
    store: str
    tenant: str = "default"
    agents: Sequence[str] = ("support", "ops")
    secrets: Sequence[bytes] = SECRETS
    shards: JsonObject = field(default_factory=dict[str, object])
    running: list[Bot] = field(default_factory=list[Bot])

    async def precomputed(self, *verdicts: Verdict) -> None:
        """Wait until cards are posted and every bot has precomputed their calls."""
        for verdict in verdicts:
            approval_id, _ = approval_of(verdict.item_id)
            await self._posted(approval_id)
            for bot in self.running:
                await bot.precomputed(approval_id)

    async def _posted(self, approval_id: str) -> None:
        async def is_posted() -> bool:
            return any(bot.has_posted(approval_id) for bot in self.running)

        await eventually(is_posted, within_s=LONG_S)

    async def start(self, name: str, policy: str = POLICY) -> Bot:
        """Start one more."""
        file, stack = self.folder / f"{name}.yml", self.stack
        clock = self.folder / f"{name}.clock"
        file.write_text(policy)
        assert stack.store.keyring
        told = {
            "store": self.store,
            "shards": self.shards,
            "secrets": [one.hex() for one in self.secrets],
            "keys": str(stack.store.keyring.folder),
            "policy": str(file),
            "clock": str(clock),
            "tenant": self.tenant,
            "agents": list(self.agents),
            "token": stack.config.bot_token,
            "signing_secret": stack.config.signing_secret,
            "api_url": stack.config.api_url,
        }
        words = ("tests.bot.precomputing_bot", json.dumps(told))
        bot = Bot(stack, Member(words, ENV, self.folder / f"{name}.log"), clock, file)
        self.running.append(bot)
        await bot.member.start()
        await bot.ready()
        return bot


@asynccontextmanager
async def several_bots(stack: Stack, folder: Path) -> AsyncGenerator[Bots]:
    """Give what starts them; kill them at the end."""
    stack.sandbox.control.rates(enabled=False)
    bots = Bots(stack, folder, stack.store.conn.url)
    try:
        yield bots
    finally:
        for one in bots.running:
            await one.member.kill()


async def request(stack: Stack, verdict: Verdict, user: str) -> bytes:
    """Return the body of a click on the card of a call, as it is shown now."""
    card = await stack.card(verdict)
    slack = stack.sandbox.slack
    message = stack.sandbox.workspace.messages[CHANNEL][str(card["ts"])]
    person = stack.sandbox.workspace.user(user)
    who = payloads.Interaction(person, slack.triggers.issue(user))
    [button] = [
        {**element, "block_id": block["block_id"], "action_ts": slack.clock.next_ts()}
        for block in message.blocks or ()
        for element in as_objects(block.get("elements"))
        if element.get("action_id") == Action.APPROVE
    ]
    return interaction(payloads.on_message(slack, who, message, button, {}).payload)


async def item_of(stack: Stack, verdict: Verdict) -> Item:
    """Return a call as it stands."""
    return (await stack.approval(verdict)).items[approval_of(verdict.item_id)[1]]


async def authorized(stack: Stack, verdict: Verdict) -> int:
    """Return how often the audit log says that a call was authorized."""
    entries = await audit_entries(stack.store.conn, stack.keys)
    return sum(
        one.item == verdict.item_id and one.name is EventName.ITEM_AUTHORIZED
        for one in entries
    )


async def words_to(stack: Stack, user: str) -> list[str]:
    """Return what was said to somebody alone, oldest first."""
    found = await stack.actor(user).ephemerals(CHANNEL)
    return [str(one["text"]) for one in found]


async def told(stack: Stack, user: str, count: int) -> list[str]:
    """Wait until somebody was told so many things; return them."""

    async def are_there() -> bool:
        return len(await words_to(stack, user)) >= count

    await eventually(are_there, within_s=LONG_S)
    return await words_to(stack, user)


async def told_more(stack: Stack, user: str, before: int) -> str:
    """Wait until somebody was told one thing more than before; return it."""
    return (await told(stack, user, before + 1))[-1]
