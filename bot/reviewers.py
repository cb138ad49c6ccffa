"""Find out who clicked: what account it is, and which user groups it is in.

A decision waits for this, and Slack waits three seconds for the decision. So answers
are kept for a minute, all questions of one click are asked at once, and all of it has
a second and a half. What Slack does not say in time is unknown, and what is unknown
decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from bot.web import Reply, Slack, SlackError, SlackRefused
from gateway.approvals.decisions import Reviewer, Standing
from gateway.approvals.record import Approval, Demand

logger = logging.getLogger(__name__)

KEPT_S = 60.0
PATIENCE_S = 1.5
_MAX_KEPT = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Account:
    """What Slack says of a person."""

    standing: Standing
    name: str = ""


class Reviewers:
    """The people of one workspace, as Slack knows them now.

    Args:
        slack: to ask.
        team: the workspace's id.
        enterprise: the organization above it, "" for none; its people are members.
        clock: seconds, never going backwards.
    """

    def __init__(
        self,
        slack: Slack,
        *,
        team: str,
        enterprise: str = "",
        clock: Callable[[], float],
    ) -> None:
        self._slack = slack
        self._team = team
        self._enterprise = enterprise
        self._clock = clock
        self._accounts = _Kept[Account](self._ask_account, clock)
        self._groups = _Kept[frozenset[str]](self._ask_group, clock)

    async def resolve(
        self,
        user: str,
        *,
        user_team: str,
        groups: Iterable[str] = (),
        fresh: bool = False,
    ) -> Reviewer:
        """Return who somebody is; never raises, and takes at most `PATIENCE_S`.

        Args:
            user: Slack id of whoever clicked.
            user_team: home of their account, from the payload.
            groups: the user groups that matter; no others are asked about.
            fresh: ask Slack anew, for decisions in which a minute is too old. Whoever
                was in none of the groups within that minute costs no question.
        """
        now = self._clock()
        since = now if fresh else now - KEPT_S
        account, member_of = await asyncio.gather(
            self._accounts.in_time(user, since),
            self._groups_of(user, frozenset(groups), since),
        )
        known = account or Account(Standing.UNKNOWN)
        is_elsewhere = not self._enterprise and user_team != self._team
        is_guest_here = known.standing is Standing.MEMBER and is_elsewhere
        return Reviewer(
            team=self._team,
            user=user,
            name=known.name,
            usergroups=member_of,
            standing=Standing.STRANGER if is_guest_here else known.standing,
        )

    async def warm(self, approval: Approval) -> None:
        """Ask about the people who may decide this, so that a click need not."""
        demands = [item.demand for item in approval.items]
        users = {user for demand in demands for user in users_of(demand)}
        groups = {group for demand in demands for group in groups_of(demand)}
        since = self._clock() - KEPT_S
        await asyncio.gather(
            *(self._accounts.in_time(user, since) for user in sorted(users)),
            *(self._groups.in_time(group, since) for group in sorted(groups)),
        )

    async def _groups_of(
        self, user: str, groups: frozenset[str], since: float
    ) -> frozenset[str] | None:
        """Return the groups somebody is in; None when Slack left one open.

        Slack answers 20 such questions a minute (tier 2). So only a membership is
        asked about again, not its absence: an outsider who clicks uses nothing up.
        """
        held = await self._groups_since(user, groups, self._clock() - KEPT_S)
        return await self._groups_since(user, groups, since) if held else held

    async def _groups_since(
        self, user: str, groups: frozenset[str], since: float
    ) -> frozenset[str] | None:
        wanted = sorted(groups)
        found = await asyncio.gather(
            *(self._groups.in_time(group, since) for group in wanted)
        )
        members = [people for people in found if people is not None]
        if len(members) < len(wanted):
            return None
        pairs = zip(wanted, members, strict=True)
        return frozenset(group for group, people in pairs if user in people)

    async def _ask_account(self, user: str) -> Account:
        try:
            reply = await self._slack.ask("users.info", user=user)
        except SlackRefused as error:
            if error.error in {"user_not_found", "user_not_visible"}:
                return Account(Standing.STRANGER)
            raise
        return self._account(cast("Reply", reply.get("user") or {}))

    def _account(self, user: Reply) -> Account:
        profile = cast("Mapping[str, object]", user.get("profile") or {})
        names = (profile.get("display_name"), user.get("real_name"), user.get("name"))
        name = next((str(each) for each in names if each), "")
        return Account(self._standing(user), name)

    def _standing(self, user: Reply) -> Standing:
        above = cast("Mapping[str, object]", user.get("enterprise_user") or {})
        is_colleague = user.get("team_id") == self._team or bool(
            self._enterprise and above.get("enterprise_id") == self._enterprise
        )
        flags = (
            (bool(user.get("deleted")), Standing.DEACTIVATED),
            (_is_bot(user), Standing.BOT),
            (bool(user.get("is_stranger")), Standing.STRANGER),
            (_is_guest(user), Standing.GUEST),
            (not is_colleague, Standing.STRANGER),
        )
        return next((what for is_so, what in flags if is_so), Standing.MEMBER)

    async def _ask_group(self, group: str) -> frozenset[str]:
        reply = await self._slack.ask("usergroups.users.list", usergroup=group)
        return frozenset(cast("list[str]", reply.get("users") or []))


def groups_of(demand: Demand) -> frozenset[str]:
    """Return the user groups that matter for a demand."""
    return frozenset(group for role in demand.roles for group in role.usergroups)


def users_of(demand: Demand) -> frozenset[str]:
    """Return the people a demand lists by id."""
    return frozenset(user for role in demand.roles for user in role.users)


class _Kept(Generic[T]):
    """Answers that are kept for a minute; one question at a time for each key."""

    def __init__(
        self, ask: Callable[[str], Awaitable[T]], clock: Callable[[], float]
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._answers: dict[str, tuple[float, T]] = {}
        self._asking: dict[str, tuple[float, asyncio.Task[T]]] = {}

    async def get(self, key: str, since: float) -> T:
        """Return an answer to a question that was put at this time or later."""
        kept = self._answers.get(key)
        if kept is not None and kept[0] >= since:
            return kept[1]
        asked_at, asking = self._asking.get(key, (since, None))
        if asking is None or asked_at < since:
            asked_at = self._clock()
            asking = asyncio.create_task(self._ask_now(key, asked_at))
            self._asking[key] = (asked_at, asking)
            asking.add_done_callback(lambda task: self._asked(key, task))
        # Who stops waiting must not stop the question for the others.
        return await asyncio.shield(asking)

    async def in_time(self, key: str, since: float) -> T | None:
        """Return such an answer, or None when Slack does not give it in time."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.get(key, since)
        except (SlackError, TimeoutError) as error:
            logger.warning("reviewer.unresolved why=%s", type(error).__name__)
            return None

    async def _ask_now(self, key: str, asked_at: float) -> T:
        answer = await self._ask(key)
        if len(self._answers) >= _MAX_KEPT:
            self._answers.clear()
        if self._answers.get(key, (asked_at, answer))[0] <= asked_at:
            self._answers[key] = (asked_at, answer)
        return answer

    def _asked(self, key: str, task: asyncio.Task[T]) -> None:
        if self._asking.get(key, (0.0, None))[1] is task:
            del self._asking[key]
        with suppress(asyncio.CancelledError):
            task.exception()  # whoever still waits gets it; nobody may be waiting


def _is_bot(user: Reply) -> bool:
    return bool(user.get("is_bot") or user.get("is_workflow_bot")) or (
        user.get("id") == "USLACKBOT"
    )


def _is_guest(user: Reply) -> bool:
    return bool(user.get("is_restricted") or user.get("is_ultra_restricted"))
