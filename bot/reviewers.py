"""Resolve a Slack user to a reviewer: kind of account, and roles by user group.

Slack expects the response to a click within three seconds, so all requests for one
click run concurrently. A group for which Slack gives no answer is listed as unknown in
the result, and an unknown group gives no role.

Slack allows 20 calls of ``usergroups.users.list`` a minute for a whole workspace. So
all clicks share cached snapshots: each person or group has at most one request in
flight, and is requested again only if its snapshot is older than the decision allows. A
rate limiter (`Limits`) refuses a request before Slack would, and after a 429 until
Retry-After is over. A missing, late or malformed response is a `NoAnswer` with the time
of the next attempt. It is never treated as an empty group or an unknown user.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import partial
from typing import Generic, TypeAlias, TypeVar, cast

from keyturn.bot import web
from keyturn.bot.limits import GROUP_USERS, USER, Limits
from keyturn.bot.web import SlackBody, SlackRefused
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.policy.hours import zone

logger = logging.getLogger(__name__)


KEPT_S = 60.0
"""Maximum age in seconds if one person suffices, and for views."""

FRESH_S = 5.0
"""Maximum age in seconds of an account if several people have to agree.

The more groups are in use, the older they may be; see `Reviewers.fresh_group_s`.
"""

LOOKUP_TIMEOUT_S = 1.5
_MAX_KEPT = 10_000
_NO_SUCH_USER = frozenset({"user_not_found", "user_not_visible"})
"""The only errors of Slack that mean that the user does not exist."""

_NO_SUCH_GROUP = frozenset({"no_such_subteam", "subteam_not_found"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Account:
    """A Slack user: kind of account, display name and name of the time zone."""

    kind: AccountKind
    name: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """An answer of Slack, and the time of its request (seconds of the clock)."""

    value: T
    asked_at: float


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No usable answer; retry in ``retry_in_s`` seconds, 0 for immediately."""

    retry_in_s: int = 0


class Reviewers:
    """The users and user groups of one workspace, cached, as reviewers.

    Args:
        slack: answers the requests.
        team: the workspace's id.
        enterprise: the organization above it, "" for none; its people are members.
        clock: seconds, monotonic.
        unknown: called with each person whom Slack did not identify.
    """

    def __init__(
        self,
        slack: web.Slack,
        *,
        team: str,
        enterprise: str = "",
        clock: Callable[[], float],
        unknown: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._slack = slack
        self._team = team
        self._enterprise = enterprise
        self._clock = clock
        self._unknown = unknown
        limits = Limits(clock)
        look_up = partial(look_up_account, slack, team=team, enterprise=enterprise)
        self._accounts = _Snapshots(USER, look_up, limits, clock)
        self._groups = _Snapshots(GROUP_USERS, self._ask_group, limits, clock)

    @property
    def fresh_group_s(self) -> float:
        """Return the maximum age of a group for a decision of several people.

        Up to 12 groups in use cost at most 12 calls a minute: the age grows with their
        number (5 s for one, 60 s for twelve). The age never exceeds `KEPT_S`, so more
        groups cost a call each a minute. Above 14 a minute, or 6 at once, the rate
        limiter refuses, and the person is asked to click again some seconds later.
        """
        return min(KEPT_S, FRESH_S * max(1, self._groups.in_use(KEPT_S)))

    async def account(
        self, user: str, *, fresh: bool = False
    ) -> Snapshot[Account] | NoAnswer:
        """Return a user's account within `LOOKUP_TIMEOUT_S`; never raises."""
        return await self._accounts.get(user, FRESH_S if fresh else KEPT_S)

    async def zone(self, user: str) -> tzinfo:
        """Return a user's time zone; UTC if it is not known."""
        found = await self.account(user)
        try:
            return zone(found.value.zone if isinstance(found, Snapshot) else "UTC")
        except ValueError:
            return UTC

    async def group(
        self, group: str, *, fresh: bool = False
    ) -> Snapshot[frozenset[str]] | NoAnswer:
        """Return the ids of a group's members; otherwise as `account`."""
        return await self._groups.get(group, self.fresh_group_s if fresh else KEPT_S)

    async def _ask_group(self, group: str) -> frozenset[str]:
        try:
            reply = await self._slack.ask(GROUP_USERS, usergroup=group)
        except SlackRefused as error:
            if error.error in _NO_SUCH_GROUP:
                # A deleted group has no members. It is logged as an error because the
                # policy names it; `keyturn doctor` shows it, too.
                logger.error("user_group.unknown group=%s", group)  # noqa: TRY400 - the name says it all
                return frozenset()
            raise
        users = reply.get("users")
        # Not an empty group, which would refuse all its members.
        if not isinstance(users, list):
            raise web.SlackNoResponse(GROUP_USERS, "an answer without users")
        if not users:
            # Its cards are posted but have no possible decider, and neither a click nor
            # a refusal by Slack would reveal that.
            logger.warning("user_group.empty group=%s", group)
        return frozenset(str(user) for user in cast("list[object]", users))

    async def resolve(
        self,
        user: str,
        *,
        user_team: str,
        groups: Iterable[str] = (),
        fresh: bool = False,
        is_glance: bool = False,
    ) -> Reviewer:
        """Return a person as a reviewer; never raises.

        Args:
            user: Slack id of the person who clicked.
            user_team: home of their account, from the payload.
            groups: the user groups to look up; no others are.
            fresh: for decisions of several people, for which an answer a minute old is
                too old; see `fresh_group_s`. A person found in none of the
                groups is always looked up again, so a role given within that minute
                counts.
            is_glance: the result refuses nothing, so no second lookup is made.
        """
        wanted = sorted(set(groups))
        found = await self._found(user, wanted, user_team, fresh=fresh)
        # A role that was taken away within the minute still counts in a decision of one
        # person: the vote is stored with the age of Slack's answer.
        is_nobody = bool(wanted) and not (found.usergroups or found.unknown_groups)
        is_final = fresh or is_glance
        if is_nobody and not is_final and found.account is AccountKind.MEMBER:
            return await self._found(user, wanted, user_team, fresh=True)
        return found

    async def _found(
        self, user: str, groups: list[str], user_team: str, *, fresh: bool
    ) -> Reviewer:
        asked = self.account(user, fresh=fresh)
        found = list[Snapshot[frozenset[str]] | NoAnswer]()
        if groups:
            of_groups = (self.group(one, fresh=fresh) for one in groups)
            account, found = await asyncio.gather(asked, asyncio.gather(*of_groups))
        else:
            account = await asked
        members = dict(zip(groups, found, strict=True))
        if self._unknown is not None and any(
            isinstance(one, NoAnswer) for one in (account, *members.values())
        ):
            await self._unknown(user)
        return self._reviewer(user, user_team, account, members)

    def _reviewer(
        self,
        user: str,
        user_team: str,
        account: Snapshot[Account] | NoAnswer,
        members: Mapping[str, Snapshot[frozenset[str]] | NoAnswer],
    ) -> Reviewer:
        snapshots = {
            group: one for group, one in members.items() if isinstance(one, Snapshot)
        }
        # No answer is UNKNOWN, which cannot decide. STRANGER would refuse the person
        # for good.
        known = (
            account.value
            if isinstance(account, Snapshot)
            else Account(AccountKind.UNKNOWN)
        )
        answers = [account, *members.values()]
        asked = [one.asked_at for one in answers if isinstance(one, Snapshot)]
        waits = [one.retry_in_s for one in answers if isinstance(one, NoAnswer)]
        # The oldest of the answers: the audit log shows the age of the oldest fact used
        # for this decision.
        age_s = self._clock() - min(asked, default=self._clock())
        return Reviewer(
            team=self._team,
            user=user,
            name=known.name,
            usergroups=frozenset(
                group for group, people in snapshots.items() if user in people.value
            ),
            unknown_groups=frozenset(members.keys() - snapshots.keys()),
            account=self._kind(known, user_team),
            membership_age_ms=int(1000 * max(0.0, age_s)),
            # The longest wait: an earlier retry would leave one of the groups unknown
            # again.
            retry_in_s=max(waits, default=0),
        )

    def _kind(self, known: Account, user_team: str) -> AccountKind:
        # In an organization (Enterprise Grid) people act from other workspaces of it;
        # `look_up_account` has compared the organization.
        is_elsewhere = not self._enterprise and user_team != self._team
        if known.kind is AccountKind.MEMBER and is_elsewhere:
            return AccountKind.STRANGER
        return known.kind


async def look_up_account(
    slack: web.Slack, user: str, *, team: str, enterprise: str
) -> Account:
    """Request a user's kind of account with ``users.info``.

    Args:
        slack: answers the request.
        user: their id.
        team: the requesting workspace.
        enterprise: the organization above it, "" for none.

    Raises:
        SlackError: no answer. `SlackNoResponse` if the answer has no user, or one with
            a member that is not an object.
    """
    try:
        reply = await slack.ask(USER, user=user)
    except SlackRefused as error:
        # An answer, not a failure: a retry would not help, and a STRANGER cannot
        # decide. Another error, such as `missing_scope`, is not about the user.
        if error.error in _NO_SUCH_USER:
            return Account(AccountKind.STRANGER)
        raise
    found = reply.get("user")
    if not isinstance(found, Mapping) or "id" not in found:
        raise web.SlackNoResponse(USER, "an answer without a user")
    return _account_of(cast("SlackBody", found), team=team, enterprise=enterprise)


def _account_of(user: SlackBody, *, team: str, enterprise: str) -> Account:
    profile = _member(user, "profile")
    # The full name first: several people may share a display name such as "ana".
    names = (user.get("real_name"), profile.get("display_name"), user.get("name"))
    name = next((str(each) for each in names if each), "")
    above = _member(user, "enterprise_user")
    is_colleague = user.get("team_id") == team or bool(
        enterprise and above.get("enterprise_id") == enterprise
    )
    # The first match counts: a deactivated bot is DEACTIVATED. Only an account without
    # any of these flags is a member.
    flags = (
        (bool(user.get("deleted")), AccountKind.DEACTIVATED),
        (bool(user.get("is_bot")), AccountKind.BOT),
        (bool(user.get("is_workflow_bot")), AccountKind.BOT),
        (user.get("id") == "USLACKBOT", AccountKind.BOT),
        (bool(user.get("is_stranger")), AccountKind.STRANGER),
        (bool(user.get("is_restricted")), AccountKind.GUEST),
        (bool(user.get("is_ultra_restricted")), AccountKind.GUEST),
        (not is_colleague, AccountKind.STRANGER),
    )
    kind = next((what for is_so, what in flags if is_so), AccountKind.MEMBER)
    return Account(kind, name, str(user.get("tz") or ""))


_Asking: TypeAlias = asyncio.Task[Snapshot[T] | NoAnswer]


class _Snapshots(Generic[T]):
    """Newest answer for each key, and its request in flight."""

    def __init__(
        self,
        method: str,
        ask: Callable[[str], Awaitable[T]],
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._method = method
        self._ask = ask
        self._limits = limits
        self._clock = clock
        self._newest: dict[str, Snapshot[T]] = {}
        self._asking: dict[str, tuple[float, _Asking[T]]] = {}

    def in_use(self, within_s: float) -> int:
        """Return how many keys were requested within this time."""
        since = self._clock() - within_s
        recent = {key for key, one in self._newest.items() if one.asked_at >= since}
        return len(recent | self._asking.keys())

    async def get(self, key: str, max_age_s: float) -> Snapshot[T] | NoAnswer:
        """Return an answer no older than this, or when to try again."""
        since = self._clock() - max_age_s
        newest = self._newest.get(key)
        if newest is not None and newest.asked_at >= since:
            return newest
        # A request in flight that began before `since` may bring an answer that is too
        # old for this decision, so a second one is started.
        asked_at, task = self._asking.get(key, (since, None))
        if task is None or asked_at < since:
            # Not awaited: the click has to be answered within three seconds. The person
            # gets the time of the next attempt.
            wait_s = self._limits.take(self._method)
            if wait_s:
                return self._no_answer(math.ceil(wait_s), "rate_limit")
            task = self._start(key)
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                # A caller that times out must not cancel the request for the others.
                return await asyncio.shield(task)
        except TimeoutError:
            # A late answer still serves later clicks, but they start a new request.
            self._forget(key, task)
            return self._no_answer(0, "slow")

    def _start(self, key: str) -> _Asking[T]:
        # The age counts from the request, not from the response: Slack may have read
        # its data when the request came in.
        asked_at = self._clock()
        task = asyncio.create_task(self._asked(key, asked_at))
        self._asking[key] = (asked_at, task)
        task.add_done_callback(partial(self._forget, key))
        return task

    async def _asked(self, key: str, asked_at: float) -> Snapshot[T] | NoAnswer:
        try:
            snapshot = Snapshot(await self._ask(key), asked_at)
        except web.RateLimited as error:
            self._limits.refused(self._method, "", error.retry_after_s)
            return self._no_answer(math.ceil(error.retry_after_s), "rate_limited")
        except web.SlackError as error:
            why = error.error if isinstance(error, SlackRefused) else "silent"
            return self._no_answer(0, why)
        # The keys come from people who click: without a bound a flood of strangers
        # would fill the memory. Clearing it costs one round of requests.
        if len(self._newest) >= _MAX_KEPT:
            self._newest.clear()
        newest = self._newest.get(key, snapshot)
        # Two requests may overlap, and the older one may be answered last.
        if newest.asked_at <= asked_at:
            self._newest[key] = snapshot
        return snapshot

    def _forget(self, key: str, task: _Asking[T]) -> None:
        # Only its own entry: a later request for the same key may have replaced it.
        if self._asking.get(key, (0.0, None))[1] is task:
            del self._asking[key]

    def _no_answer(self, retry_in_s: int, why: str) -> NoAnswer:
        logger.warning(
            "user.lookup_failed method=%s why=%s retry_in_s=%d",
            self._method,
            why,
            retry_in_s,
        )
        return NoAnswer(retry_in_s)


def _member(user: SlackBody, name: str) -> SlackBody:
    found = user.get(name)
    if found and not isinstance(found, Mapping):
        raise web.SlackNoResponse(USER, f"a user whose {name} is no object")
    return cast("SlackBody", found or {})
