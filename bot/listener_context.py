"""Context of a listener: its dependencies, private replies, and background tasks.

A bare ``asyncio.create_task`` may be garbage-collected while it runs, and is dropped at
shutdown; `Tasks` finishes them. No decision belongs there: decisions are written before
the acknowledgement.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import LiteralString

from keyturn.bot.blocks import Block, notice
from keyturn.bot.cards.frame import Frame
from keyturn.bot.config import BotConfig
from keyturn.bot.identity import BotToken
from keyturn.bot.limits import HomeUpdates
from keyturn.bot.payload import BlockAction, Clicked
from keyturn.bot.reviewers import Reviewers
from keyturn.bot.text import Label, Template, escape_mrkdwn, label
from keyturn.bot.web import Slack, SlackError
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.quorum import click_again
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol.tiers import Tier
from keyturn.gateway.service.deciding import Voters
from keyturn.gateway.service.reviews import ReviewService
from keyturn.gateway.store.freezes import FreezeScope
from keyturn.gateway.store.keys import Keys

logger = logging.getLogger(__name__)

UserText = Template | Label
"""A sentence of ours for one person."""

_REPLAYED = label("This request came before, so nothing was changed this time.")


class UserFacingError(Exception):
    """Stop here and tell the person one sentence; nothing changed.

    Attributes:
        message: the sentence for the person.
    """

    def __init__(self, message: UserText) -> None:
        self.message = message
        super().__init__(message.text)


class NoRecord(UserFacingError):
    """There is no approval of the id that a button holds."""


def to_mrkdwn(message: UserText) -> str:
    """Return a sentence as the text of a message, which Slack reads as markup."""
    return (
        message.text if isinstance(message, Template) else escape_mrkdwn(message.text)
    )


@dataclass(frozen=True, slots=True)
class ListenerContext:
    """Everything a listener may use.

    Attributes:
        service: decides.
        slack: Slack's Web API.
        reviewers: who people are.
        token: whether the bot's token works.
        tasks: for what comes after the answer.
        config: what the bot was set up with.
        team: the one workspace that is served.
        bot_user: the bot's own user id.
        home: turns at publishing Home tabs.
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
            StoreUnavailable: it does not answer.
        """
        return await self.service.store.conn.now_ms(self.keys.outbox)

    def frame(self, approval: Approval, now_ms: int) -> Frame:
        """Return what the cards and modals of an approval are made with."""
        return Frame(approval, self.config.seal_key, self.team, now_ms)

    async def reviewer_of(
        self,
        user: str,
        user_team: str,
        *items: Item,
        decides: bool = False,
        is_glance: bool = False,
    ) -> Reviewer:
        """Return who somebody is with regard to these items, and for whom they act.

        What Slack said within a minute is good enough, except for who decides on
        something that several people decide. ``is_glance`` asks Slack no more than
        that: for what is only shown, and shown again soon.
        """
        wanted = (self.service.usergroups(item) for item in items)
        groups = frozenset[str]().union(*wanted)
        # A decision of one person may use an answer of Slack that is a minute old.
        # Where several must agree, one who left the group within that minute would
        # complete the number.
        fresh = decides and any(_takes_several(item) for item in items)
        return await self._resolved(
            user, user_team, groups, fresh=fresh, is_glance=is_glance
        )

    async def person_among(
        self, user: str, groups: Iterable[str], *, is_glance: bool = False
    ) -> Reviewer:
        """Return a person of this workspace, and for whom they act, by these groups.

        ``is_glance`` is that of `reviewer_of`.
        """
        return await self._resolved(
            user, self.team, frozenset(groups), fresh=False, is_glance=is_glance
        )

    async def resolve_freezer(
        self, user: str, user_team: str, scope: FreezeScope
    ) -> Reviewer:
        """Return a person with the roles that may freeze or unfreeze this scope."""
        groups = self.service.reviewer_freezes.usergroups(scope)
        return await self._resolved(user, user_team, groups, fresh=True)

    async def _resolved(
        self,
        user: str,
        user_team: str,
        groups: frozenset[str],
        *,
        fresh: bool,
        is_glance: bool = False,
    ) -> Reviewer:
        # Those whose queue this person was handed are looked up in the same round:
        # Slack waits three seconds, and each lookup may take half of them.
        given = await self.service.delegations.given_to(user)
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
        self, user: str, user_team: str, *items: Item
    ) -> tuple[Reviewer, Voters]:
        """Return who decides, and how to resolve those who voted before.

        All of them are looked up at once: Slack waits three seconds for the response.
        Only people who vote in the meantime are looked up later.
        """
        voted = {vote.by.user for item in items for vote in item.votes}
        reviewer, *found = await asyncio.gather(
            self.reviewer_of(user, user_team, *items, decides=True),
            *(
                self.reviewer_of(each, self.team, *items, decides=True)
                # Sorted, so that which lookup gets the last token of the rate limit
                # does not depend on the hash seed of the process.
                for each in sorted(voted - {user})
            ),
        )
        # Votes are checked again at each new one: who left the role since their click
        # must not count (`deciding.decide`).
        known = {each.user: each for each in (reviewer, *found)}

        async def voters(item: Item) -> list[Reviewer]:
            return [
                known.get(vote.by.user)
                or await self.reviewer_of(vote.by.user, self.team, item, decides=True)
                for vote in item.votes
            ]

        return reviewer, voters

    def reply_to_click(self, click: Clicked, message: UserText) -> None:
        """Tell the person who clicked, and nobody else, after the answer.

        Inside a modal the sentence takes the place of the modal; on a card it is a
        message that only they see.
        """
        self.tasks.later(self._reply_to_click(click, message), name="reply")

    def keep_response_url(self, click: Clicked) -> None:
        """Let the publisher replace the message of a click by the URL in the click.

        Not awaited: without it the message is changed by ``chat.update``.
        """
        if click.action.response_url and click.action.message_ts:
            self.tasks.later(self._keep_response_url(click.action), name="url")

    async def send(self, method: str, *, to: str, **arguments: object) -> None:
        """Post a message that may get lost: one that is not sent is logged.

        Args:
            method: of Slack's Web API.
            to: who is told; for the log.
            arguments: of the method.
        """
        try:
            await self.slack.call(method, **arguments)
        except SlackError as error:
            logger.warning("message.not_sent user=%s why=%s", to, error)

    async def is_first(self, event_id: str) -> bool:
        """Return True if this event was not delivered before.

        Slack repeats an event, newly signed, when our response was late or lost.
        """
        digest = hashlib.sha256(f"event:{event_id}".encode()).hexdigest()
        return await self.service.store.cards.is_first(self.keys, f"sha256:{digest}")

    async def require_member(
        self,
        who: tuple[str, str],
        refusal: Template,
        *,
        asked: LiteralString = "who you are",
        fresh: bool = False,
    ) -> Reviewer:
        """Return a member of the workspace, of this user id and home team.

        Raises:
            UserFacingError: with this refusal for everybody else; when Slack did not
                say what was ``asked``, it says that.
        """
        user, user_team = who
        found = await self.reviewers.resolve(user, user_team=user_team, fresh=fresh)
        if found.account is AccountKind.UNKNOWN:
            again = click_again([found]).replace("click", "try")
            raise UserFacingError(label(f"Slack did not say {asked}. {again}"))
        if found.account is not AccountKind.MEMBER:
            raise UserFacingError(refusal)
        return found

    async def ensure_first(self, digest: str, token: str = "") -> None:
        """Let a request go on that changes something of which it names no version.

        What names one, as a click on a card does, changes nothing a second time.

        Args:
            digest: of the signed request.
            token: of this delivery, where it may be tried again.

        Raises:
            UserFacingError: it is a replay, which a failover had let through.
            StoreUnavailable: that is not known.
        """
        token = token or secrets.token_hex(8)
        if not await self.service.store.cards.takes_effect(self.keys, digest, token):
            logger.warning("listener.replayed request=%s", digest)
            raise UserFacingError(_REPLAYED)

    async def _keep_response_url(self, action: BlockAction) -> None:
        with suppress(StoreUnavailable):
            await self.service.store.response_urls.keep(
                self.keys, action.channel, action.message_ts, action.response_url
            )

    async def _reply_to_click(self, click: Clicked, message: UserText) -> None:
        action = click.action
        try:
            # Slack shows no ephemeral message inside a modal or on the Home tab.
            if action.is_home or (action.view_id and not action.channel):
                await self._reply_in_view(click, notice(label("Not done"), message))
            elif await self._is_answered_by_url(action, message):
                return
            elif action.channel:
                await self.slack.call(
                    "chat.postEphemeral",
                    channel=action.channel,
                    user=action.user,
                    text=to_mrkdwn(message),
                )
        except SlackError as error:
            logger.warning("message.not_sent user=%s why=%s", action.user, error)

    async def _is_answered_by_url(self, action: BlockAction, said: UserText) -> bool:
        body = {"response_type": "ephemeral", "replace_original": False}
        text = {"text": to_mrkdwn(said)}
        try:
            if action.response_url:
                await self.slack.respond(action.response_url, body | text)
        except SlackError:
            # It is good for five posts within half an hour, those for its card among
            # them, and the last word about a click may come a minute after it. Where
            # Slack did not answer, a person is better told twice than never.
            return False
        return bool(action.response_url)

    async def _reply_in_view(self, click: Clicked, view: Block) -> None:
        if click.action.is_home:
            trigger = click.action.trigger_id
            await self.slack.call("views.open", trigger_id=trigger, view=view)
            return
        # On top, so that a form below keeps what is filled in, and its button can be
        # clicked again.
        try:
            trigger = click.action.trigger_id
            await self.slack.call("views.push", trigger_id=trigger, view=view)
        except SlackError:
            # Three on top of each other, or a trigger that is spent or too old.
            view_id = click.action.view_id
            await self.slack.call("views.update", view_id=view_id, view=view)


def _takes_several(item: Item) -> bool:
    most = max(part.approvals for part in item.requirement.parts)
    return most > 1 or item.tier is Tier.ESCALATE or bool(item.votes)


class Tasks:
    """The tasks of one event loop that nobody waits for."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def later(self, work: Coroutine[object, object, None], *, name: str) -> None:
        """Start a task; whatever it raises is logged, never lost."""
        task = asyncio.create_task(self._logged(work, name), name=name)
        # The event loop keeps only weak references to tasks.
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def drain(self, *, timeout_s: float) -> None:
        """Wait until all are done, those they start included; then cancel the rest."""
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
