"""Put a real bot between the sandbox and a real store, with agents that ask."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import aiohttp

from keyturn.bot.app import SlackBot
from keyturn.bot.config import BotConfig
from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.ids import Action, chosen
from keyturn.bot.limits import Limits
from keyturn.bot.web import Identity, Slack
from keyturn.gateway.approvals.decisions import AccountKind, Decision
from keyturn.gateway.approvals.decisions import Reviewer as ClickingPerson
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval, Item, Origin, approval_of
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.config import SlackMode
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.questions import ASK_USER
from keyturn.gateway.protocol.records import Person, Result
from keyturn.gateway.protocol.strict_json import JsonObject as Args
from keyturn.gateway.protocol.wire import (
    CallHint,
    ClaimRequest,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
)
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.service.run.sweep import Sweeper
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.records.approval_indexes import Timer
from keyturn.gateway.store.reviewers.cards import CardPlace
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.elements import find, placed_elements
from keyturn.sandbox.json_types import JsonObject, as_objects
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.state_values import choice
from tests.approvals.builders import click_on
from tests.conftest import eventually
from tests.patience import WAIT_S
from tests.store_secrets import SEAL_KEY
from tests.streams import audit_entries

CHANNEL = "C0APPROVALS"
TEAM = "T0SANDBOX"
ME = Identity(team=TEAM, enterprise="", user="U0KEYTURN", bot_id="B0KEYTURN")
DAN = Person(team=TEAM, user="U0DAN", name="dan")
POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: support}
roles:
  support: {usergroups: [S0SUPPORT], users: [U0DAN]}
  senior: {usergroups: [S0SENIOR]}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers:
  escalate: {needs: with_senior}
tools:
  look_up_order: {tier: auto}
  post_notice: {tier: notify}
  process_refund:
    tier: approve
    description: "Refund {args.amount} for order {args.order_id}"
    args_schema:
      type: object
      properties:
        amount: {type: number, minimum: 0, maximum: 1000}
        order_id: {type: string}
        note: {type: string}
      required: [amount, order_id]
  send_email: {tier: approve, idempotent: true}
  wire_money: {tier: escalate}
  lonely: {tier: approve, channel: C0PRIVATE}
  no_edits: {tier: approve, allow: [approve, reject]}
"""
NOTIFY_DM = ("users: [U0DAN]}", "users: [U0DAN], notify: dm}")
"""A change of the policy: the support group gets direct messages."""

RULES = load_policy(POLICY, "policy.yml")
REFUND: Args = {"amount": 899, "order_id": "78291"}


@dataclass
class Stack:
    """Everything of one test: the sandbox, the store, the services, the bot."""

    sandbox: Sandbox
    store: Store
    mode: SlackMode = SlackMode.HTTP
    policy: Policy = RULES
    bot: SlackBot | None = None

    def __post_init__(self) -> None:
        self.agents = AgentService(self.store, lambda: self.policy)
        self.reviews = ReviewService(self.store, lambda: self.policy)
        self.sweeper = Sweeper(self.store)
        self._count = itertools.count()

    @property
    def keys(self) -> Keys:
        return self.store.keys_of_tenant("default")

    @property
    def config(self) -> BotConfig:
        return BotConfig(
            bot_token=self.sandbox.bot_token,
            mode=self.mode,
            signing_secret=self.sandbox.signing_secret,
            app_token=self.sandbox.app_token,
            api_url=self.sandbox.api_url,
            seal_keys=(SEAL_KEY,),
            port=0,
            agents=("support", "ops"),
        )

    def put_policy(self, *changes: tuple[str, str], of: str = POLICY) -> None:
        """Put a policy in force: a text, with some of its parts replaced."""
        for old, new in changes:
            assert old in of
            of = of.replace(old, new)
        self.policy = load_policy(of, "policy.yml")

    def config_with(self, **changes: Any) -> BotConfig:
        """Return the configuration with something else in it."""
        return self.config.model_copy(update=changes)

    @asynccontextmanager
    async def running(self, **changes: Any) -> AsyncGenerator[SlackBot]:
        """Run the bot by the sandbox's clock; the sandbox delivers to it."""
        config = self.config_with(**changes)
        clock = self.sandbox.clock.now
        async with SlackBot(config, self.reviews, clock=clock) as bot:
            self.bot = bot
            if config.mode is SlackMode.HTTP:
                self.sandbox.deliver_http(bot.url)
            yield bot

    @asynccontextmanager
    async def card_publisher(self) -> AsyncGenerator[CardPublisher]:
        """Give what posts cards, without a bot around it."""
        token, url = self.sandbox.bot_token, self.sandbox.api_url
        async with aiohttp.ClientSession() as session:
            slack = Slack(token, api_url=url, session=session)
            limits = Limits(asyncio.get_running_loop().time)
            yield CardPublisher(slack, limits, self.store, self.config, ME)

    def actor(self, user: str) -> Reviewer:
        return Reviewer(self.sandbox.person(user))

    async def submit(
        self,
        *calls: tuple[str, Args],
        thread: str = "t1",
        origin: Origin | None = None,
        requester: Person | None = DAN,
        says: str = "",
        task: str = "",
        handed_to: str = "",
    ) -> tuple[Verdict, ...]:
        """Submit one turn asked for by Dan."""
        message = f"m{next(self._count)}"
        ref = TurnRef(agent="support", thread=thread, message_id=message)
        facts = ThreadFacts(requester=requester, origin=origin)
        await self.store.threads.change(
            self.keys, "support", thread, lambda _: facts, why="aside"
        )
        proposed = tuple(
            ProposedCall(
                tool=tool,
                args=args,
                tool_call_id=f"c{index}",
                is_question=tool == ASK_USER,
                hint=CallHint(task=task) if task else None,
            )
            for index, (tool, args) in enumerate(calls)
        )
        turn = Turn(ref=ref, calls=proposed, says=says, handed_to=handed_to)
        return await self.agents.submit(turn)

    async def refund(
        self, thread: str = "t1", *, task: str = "", **args: object
    ) -> Verdict:
        """Submit one refund of order 78291."""
        call = ("process_refund", cast("Args", {**REFUND, **args}))
        return (await self.submit(call, thread=thread, task=task))[0]

    async def approval(self, verdict: Verdict) -> Approval:
        loaded = await self.reviews.read(approval_of(verdict.item_id)[0])
        assert loaded
        return loaded.approval

    async def item(self, verdict: Verdict) -> Item:
        approval = await self.approval(verdict)
        return approval.items[approval_of(verdict.item_id)[1]]

    async def click(
        self, verdict: Verdict, action: Action, user: str = "U0ANA"
    ) -> Reviewer:
        """Click on the card of a call once it is there; return the person."""
        card, person = await self.card(verdict), self.actor(user)
        await person.click(CHANNEL, str(card["ts"]), action)
        return person

    async def decide(
        self, verdict: Verdict, decision: Decision, user: str = "U0ANA"
    ) -> str:
        """Decide a call as a member of the support group, without a card."""
        click = click_on(await self.approval(verdict))
        return (await self.reviews.decide(click, decision, supporter(user))).kind

    async def card(
        self,
        verdict: Verdict,
        shows: Callable[[JsonObject], object] = bool,
        *,
        channel: str = CHANNEL,
        timeout_s: float = WAIT_S,
    ) -> JsonObject:
        """Wait for the card of a call, in a state that satisfies `shows`."""
        approval_id = approval_of(verdict.item_id)[0]

        def is_it(message: JsonObject) -> bool:
            return is_card_of(message, approval_id) and bool(shows(message))

        return await self.actor("U0ANA").message_with(channel, is_it, timeout_s)

    async def drawn(self, verdict: Verdict) -> CardPlace:
        """Wait until the store knows that the card shows the approval as it is."""
        approval_id, found = approval_of(verdict.item_id)[0], list[CardPlace]()

        async def is_so() -> bool:
            place = await self.store.cards.place(self.keys, approval_id)
            if place and place.rev == (await self.approval(verdict)).rev:
                found.append(place)
            return bool(found)

        await eventually(is_so)
        return found[0]

    async def cards(self, verdict: Verdict, channel: str = CHANNEL) -> list[JsonObject]:
        """Return every copy of a card, as all people see it."""
        approval_id = approval_of(verdict.item_id)[0]
        messages = await self.actor("U0ANA").messages(channel)
        return [m for m in messages if is_card_of(m, approval_id)]

    async def notes(self, card: JsonObject) -> list[JsonObject]:
        """Return the thread under a card."""
        messages = await self.actor("U0ANA").messages(CHANNEL)
        ts = card["ts"]
        return [m for m in messages if m.get("thread_ts") == ts and m["ts"] != ts]

    async def note(self, card: JsonObject, *words: str) -> JsonObject:
        """Wait for a reply under a card with these words."""

        def is_it(message: JsonObject) -> bool:
            is_reply = message.get("thread_ts") == card["ts"] != message["ts"]
            return is_reply and all(says(one)(message) for one in words)

        return await self.actor("U0ANA").message_with(CHANNEL, is_it)

    async def told(self, user: str, words: str, channel: str = CHANNEL) -> str:
        """Wait for a private message with these words."""
        found = await self.actor(user).message_with(
            channel, lambda m: m["ephemeral"] and words in str(m["text"])
        )
        return str(found["text"])

    async def bot_is_quiet(self) -> None:
        """Wait until the bot has posted all of its messages."""
        running = cast("Any", self.bot)._tasks._running
        while running:
            await asyncio.wait(running)

    async def execute(
        self, verdict: Verdict, *, ok: bool = True, summary: str = "refund 12 done"
    ) -> None:
        """Claim and run an authorized call as an agent."""
        item_id, fence = await self.begin(verdict)
        result = Result(ok=ok, summary=summary)
        assert await self.agents.finish(item_id, fence, result)

    async def begin(self, verdict: Verdict) -> tuple[str, int]:
        """Claim an authorized call as an agent; return its id and fence."""
        item = await self.item(verdict)
        claim = await self.agents.claim(claim_of(item))
        assert claim.kind == "new", claim
        return item.id, claim.fence

    async def worker_dies(self, verdict: Verdict) -> None:
        """Claim a call, and move the clock past the claim's lease."""
        await self.begin(verdict)
        approval_id, index = approval_of(verdict.item_id)
        await self.store.conn.transaction(
            ["HSET", self.keys.head(approval_id), f"{index}:u", 1],
            ["ZADD", self.keys.expiry, 1, self.keys.listed(approval_id)],
        )
        await self.sweeper.sweep()

    async def ring(self, verdict: Verdict, kind: TimerKind) -> None:
        """Move the clock to a timer, and run every replica's sweep."""
        name = str(Timer(approval=approval_of(verdict.item_id)[0], kind=kind))
        await self.store.conn.command("ZADD", self.keys.timers, "XX", 1, name)
        await self.sweeper.sweep()

    async def nothing_is_left(self) -> None:
        """Wait until every event is read, posted and acknowledged."""

        async def is_done() -> bool:
            command = self.store.conn.command
            reply = await command("XINFO", "GROUPS", self.keys.outbox)
            for group in cast("list[list[object]]", reply):
                facts = dict(zip(group[::2], group[1::2], strict=True))
                if facts[b"name"] == b"slack:default":
                    return facts[b"pending"] == 0 and facts[b"lag"] == 0
            return False

        await eventually(is_done)

    async def readiness(self) -> tuple[int, JsonObject]:
        """Return the status of ``/readyz``, and what it says."""
        assert self.bot is not None
        url = self.bot.url.replace("/slack/events", "/readyz")
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.json()

    async def problems(self) -> list[str]:
        """Return the problems that ``/readyz`` names; with one, the bot is unready."""
        status, said = await self.readiness()
        found = list(said.get("problems", []))
        assert status == (503 if found else 200)
        return found

    async def audit(self, name: EventName) -> list[Event]:
        """Return the audit entries with a name, oldest first."""
        entries = await audit_entries(self.store.conn, self.keys)
        return [one for one in entries if one.name is name]

    def calls(self, method: str) -> list[JsonObject]:
        """Return the arguments of the calls of a Slack method that had an effect."""
        return [
            call.arguments
            for call in self.sandbox.calls
            if call.method == method and call.error is None
        ]


def supporter(user: str) -> ClickingPerson:
    """Return a member of the support group, as the bot resolves them."""
    groups = frozenset({"S0SUPPORT"})
    return ClickingPerson(
        team=TEAM, user=user, account=AccountKind.MEMBER, usergroups=groups
    )


def claim_of(item: Item) -> ClaimRequest:
    """Return the claim of an agent for its call."""
    ctx = item.ctx
    return ClaimRequest(
        item_id=item.id,
        ref=TurnRef(
            agent=ctx.agent, thread=ctx.thread, ns=ctx.ns, message_id=ctx.message_id
        ),
        tool=item.tool,
        tool_call_id=ctx.tool_call_id,
        owner="0" * 32,
    )


def is_card_of(message: Mapping[str, object], approval_id: str) -> bool:
    """Return whether a message is a card of this approval."""
    is_note = message.get("thread_ts") is not None
    is_shown = approval_id in str(message.get("metadata"))
    return is_shown and not is_note and not message["ephemeral"]


def has_button(message: JsonObject, action: Action) -> bool:
    """Return whether a message has one of our buttons."""
    rows = [row for row in as_objects(message["blocks"]) if row["type"] == "actions"]
    return any(
        element["action_id"] == action or choice_of(element, action)
        for row in rows
        for element in as_objects(row["elements"])
    )


def choice_of(element: JsonObject, action: str) -> str:
    """Return the value of a menu's option for an act; "" if there is none."""
    values = (str(each["value"]) for each in as_objects(element.get("options")))
    return next((value for value in values if chosen(value)[0] == action), "")


class Reviewer(Actor):
    """A person who finds an act wherever the card has it: in a button or a menu."""

    def __init__(self, actor: Actor) -> None:
        vars(self).update(vars(actor))  # the same person, connection included

    async def click(
        self,
        channel: str,
        ts: str,
        action_id: str,
        block_id: str | None = None,
        *,
        chosen: object = None,
    ) -> None:
        """Click, or choose the act in the menu of its row."""
        for message in await self.messages(channel):
            blocks = as_objects(message["blocks"]) if message["ts"] == ts else []
            if chosen is not None or find(blocks, action_id, block_id):
                continue
            for placed in placed_elements(blocks):
                value = choice_of(placed.element, action_id)
                if value and block_id in (None, placed.block_id):
                    # With the message of this reading: the card may be drawn anew.
                    await self.act(
                        "block_actions",
                        channel=channel,
                        ts=ts,
                        action_id=Action.MORE,
                        block_id=placed.block_id,
                        chosen=choice(placed, value),
                    )
                    return
        await super().click(channel, ts, action_id, block_id, chosen=chosen)


def blocks_of(message: Mapping[str, object]) -> str:
    """Return the blocks of a message or view as text."""
    return json.dumps(message["blocks"], ensure_ascii=False)


def says(text: str) -> Callable[[JsonObject], bool]:
    """Return a condition: these words are somewhere in a message."""
    return lambda message: (
        text in str(message["blocks"]) or text in str(message["text"])
    )
