"""Context of a listener: its dependencies, private replies, and background tasks.

A bare ``asyncio.create_task`` may be garbage-collected while it runs, and is dropped at
shutdown; `Tasks` finishes them. Decisions never run in such a task: they are written
before the acknowledgement.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import LiteralString

from keyturn.bot.blocks import Block, notice
from keyturn.bot.cards.frame import Frame
from keyturn.bot.config import BotConfig
from keyturn.bot.limits import HomeUpdates
from keyturn.bot.payload import Clicked
from keyturn.bot.reviewers import Reviewers
from keyturn.bot.text import Label, Template, escape_mrkdwn, label, template
from keyturn.bot.web import BotToken, Slack, SlackError
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.quorum import try_again
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.service.decide.deciding import Voters
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.reviewers.bot_records import Delegation

logger = logging.getLogger(__name__)

UserText = Template | Label
"""One of the bot's sentences for one person."""


class UserFacingError(Exception):
    """Stops a listener and shows the person one sentence; nothing was changed.

    Attributes:
        message: the sentence for the person.
    """

    def __init__(self, message: UserText | LiteralString) -> None:
        self.message = template(message) if isinstance(message, str) else message
        super().__init__(self.message.text)


def to_mrkdwn(message: UserText) -> str:
    """Return a sentence as the text of a message, in Slack's markup."""
    return (
        message.text if isinstance(message, Template) else escape_mrkdwn(message.text)
    )


@dataclass(frozen=True, slots=True)
class ListenerContext:
    """The dependencies of a listener.

    Attributes:
        service: records the decisions.
        slack: Slack's Web API.
        reviewers: identifies people.
        token: whether the bot's token works.
        tasks: runs work after the answer.
        config: the bot's settings.
        team: the one workspace that is served.
        bot_user: the bot's user id.
        home: serializes updates of Home tabs.
    """

    service: ReviewService
    slack: Slack
    reviewers: Reviewers
    token: BotToken
    tasks: Tasks
    config: BotConfig
    team: str
    bot_user: str
    home: HomeUpdates

    @property
    def keys(self) -> Keys:
        """Return the keys of the tenant."""
        return self.service.store.keys_of_tenant(self.config.tenant)

    async def now_ms(self) -> int:
        """Return the time by the store's clock.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        return await self.service.store.conn.now_ms(self.keys.outbox)

    def frame(self, approval: Approval, now_ms: int) -> Frame:
        """Return the frame for the cards and modals of an approval."""
        return Frame(approval, self.config.seal_key, self.team, now_ms)

    async def reviewer_of(
        self,
        user: str,
        user_team: str,
        *items: Item,
        decides: bool = False,
        delegations: Sequence[Delegation] | None = None,
    ) -> Reviewer:
        """Return a person's identity and roles for these items, and for whom they act.

        Answers of Slack are cached for a minute. For a decision that several people
        must make, Slack is asked again.
        """
        wanted = (self.service.usergroups(item) for item in items)
        groups = frozenset[str]().union(*wanted)
        # A decision of one person may use an answer of Slack that is a minute old. If
        # several people must agree, a person who left the group within that minute
        # would complete the number.
        fresh = decides and any(_takes_several(item) for item in items)
        return await self.resolve(
            user, user_team, groups=groups, fresh=fresh, delegations=delegations
        )

    async def resolve(
        self,
        user: str,
        user_team: str,
        *,
        groups: frozenset[str],
        fresh: bool = False,
        is_glance: bool = False,
        delegations: Sequence[Delegation] | None = None,
    ) -> Reviewer:
        """Return a person, and for whom they act, with their roles by these groups.

        With ``fresh`` Slack is asked again. With ``is_glance`` an answer of the last
        minute always suffices, as for a page that is soon refreshed. ``delegations``
        are all of the tenant, if they were read.
        """
        # The people who delegated to this person are looked up in the same round: Slack
        # waits three seconds, and each lookup may take half of them.
        given = await self.service.delegations.given_to(user, delegations)
        people = [(user, user_team), *((one.user, self.team) for one in given)]
        reviewer, *others = await asyncio.gather(
            *(
                self.reviewers.resolve(
                    each,
                    user_team=home,
                    groups=groups,
                    fresh=fresh,
                    is_glance=is_glance,
                )
                for each, home in people
            )
        )
        return reviewer.with_(stands_in_for=tuple(others))

    async def deciders_of(
        self,
        user: str,
        user_team: str,
        *items: Item,
        delegations: Sequence[Delegation] | None = None,
    ) -> tuple[Reviewer, Voters]:
        """Return the reviewer, and how to resolve the people who voted before.

        All of them are looked up concurrently: Slack waits three seconds for the
        response. Only people who vote in the meantime are looked up later.
        """
        voted = {vote.by.user for item in items for vote in item.votes}
        # Sorted, so that the lookup that gets the last token of the rate limit does not
        # depend on the process's hash seed.
        people = [
            (user, user_team),
            *((one, self.team) for one in sorted(voted - {user})),
        ]
        reviewer, *found = await asyncio.gather(
            *(
                self.reviewer_of(*who, *items, decides=True, delegations=delegations)
                for who in people
            )
        )
        # Each new vote checks the earlier ones again: a vote does not count if its
        # author has left the role since (`keyturn.gateway.approvals.deciding`).
        known = {each.user: each for each in (reviewer, *found)}

        async def voters(item: Item) -> list[Reviewer]:
            return [
                known.get(vote.by.user)
                or await self.reviewer_of(vote.by.user, self.team, item, decides=True)
                for vote in item.votes
            ]

        return reviewer, voters

    def reply_to_click(self, click: Clicked, message: UserText) -> None:
        """Reply privately to the person who clicked, after the acknowledgement.

        In a modal the sentence is a view; on a card it is an ephemeral message.
        """
        self.tasks.later(self._reply_to_click(click, message), name="reply")

    async def is_first(self, event_id: str) -> bool:
        """Return True if this event was not delivered before.

        Slack repeats an event, newly signed, when our response was late or lost.
        """
        digest = hashlib.sha256(f"event:{event_id}".encode()).hexdigest()
        return await self.service.store.cards.is_first(self.keys, f"sha256:{digest}")

    async def require_member(
        self,
        who: tuple[str, str],
        refusal: LiteralString = "Only members of this workspace can do this.",
        *,
        asked: LiteralString = "who you are",
        fresh: bool = False,
    ) -> Reviewer:
        """Return the member of the workspace with this user id and home team.

        Raises:
            UserFacingError: the person is not a member; the message is ``refusal``. Or
                Slack did not answer; the message then contains ``asked``.
        """
        user, user_team = who
        found = await self.reviewers.resolve(user, user_team=user_team, fresh=fresh)
        if found.account is AccountKind.UNKNOWN:
            again = try_again([found])
            raise UserFacingError(label(f"Slack did not say {asked}. {again}"))
        if found.account is not AccountKind.MEMBER:
            raise UserFacingError(refusal)
        return found

    async def _reply_to_click(self, click: Clicked, message: UserText) -> None:
        try:
            # Slack shows no ephemeral message inside a modal or on the Home tab.
            if click.is_home or (click.view_id and not click.channel):
                await self._reply_in_view(click, notice("Not done", message))
            elif click.response_url:
                body = {"response_type": "ephemeral", "replace_original": False}
                text = {"text": to_mrkdwn(message)}
                await self.slack.respond(click.response_url, body | text)
        except SlackError as error:
            logger.warning("message.not_sent user=%s why=%s", click.user, error)

    async def _reply_in_view(self, click: Clicked, view: Block) -> None:
        trigger = click.trigger_id
        if click.is_home:
            await self.slack.call("views.open", trigger_id=trigger, view=view)
            return
        # On top, so that a form below keeps its inputs, and its button can be clicked
        # again.
        try:
            await self.slack.call("views.push", trigger_id=trigger, view=view)
        except SlackError:
            # Three views are open already, or the trigger is used or too old.
            await self.slack.call("views.update", view_id=click.view_id, view=view)


def _takes_several(item: Item) -> bool:
    most = max(part.approvals for part in item.requirement.parts)
    return most > 1 or item.tier is Tier.ESCALATE or bool(item.votes)


class Tasks:
    """The background tasks of one event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def later(self, work: Coroutine[object, object, None], *, name: str) -> None:
        """Start a task; its exceptions are logged."""
        task = asyncio.create_task(self._logged(work, name), name=name)
        # The event loop keeps only weak references to tasks.
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def drain(self, *, timeout_s: float) -> None:
        """Wait for all tasks, and those that they start; then cancel the rest."""
        try:
            async with asyncio.timeout(timeout_s):
                # A task may start another one, such as a private reply after an offer.
                while self._running:
                    await asyncio.wait(self._running)
        except TimeoutError:
            logger.warning("tasks.cancelled count=%d", len(self._running))
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _logged(self, work: Coroutine[object, object, None], name: str) -> None:
        try:
            await work
        except any_failure() as error:  # nobody awaits it
            log_failure(logger, error, "task.failed name=%s", name)
