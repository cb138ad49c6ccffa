"""A person is identified by Slack's current answer; without one, as unknown."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest

from keyturn.bot.reviewers import FRESH_S, Reviewers
from keyturn.bot.web import Slack
from keyturn.gateway.approvals.decisions import AccountKind
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import TEAM

pytestmark = pytest.mark.usefixtures("slacks_limits")

SUPPORT, SENIOR = "S0SUPPORT", "S0SENIOR"
MINE: frozenset[str] = frozenset({SUPPORT})
NONE: frozenset[str] = frozenset()


@dataclass
class ListenerContext:
    sandbox: Sandbox
    reviewers: Reviewers
    times: list[float] = field(default_factory=lambda: [0.0])

    def calls(self, method: str = "") -> int:
        return sum(method in {"", call.method} for call in self.sandbox.calls)


@asynccontextmanager
async def opened(*, enterprise: str = "") -> AsyncGenerator[ListenerContext]:
    async with Sandbox() as sandbox, aiohttp.ClientSession() as session:
        slack = Slack(sandbox.bot_token, api_url=sandbox.api_url, session=session)
        times = [0.0]

        def clock() -> float:
            return times[0]

        reviewers = Reviewers(slack, team=TEAM, enterprise=enterprise, clock=clock)
        yield ListenerContext(sandbox, reviewers, times)


@pytest.mark.parametrize(
    ("change", "account"),
    [
        ({"is_restricted": True}, AccountKind.GUEST),
        ({"is_ultra_restricted": True}, AccountKind.GUEST),
        ({"is_stranger": True}, AccountKind.STRANGER),
        ({"team_id": "T0OTHER"}, AccountKind.STRANGER),
        ({"is_bot": True}, AccountKind.BOT),
        ({"deleted": True}, AccountKind.DEACTIVATED),
    ],
)
async def test_each_flag_alone_is_enough_to_be_no_member(
    change: dict[str, Any], account: AccountKind
) -> None:
    async with opened() as ctx:
        workspace = ctx.sandbox.workspace
        workspace.put_user(replace(workspace.user("U0ANA"), **change))

        reviewer = await ctx.reviewers.resolve("U0ANA", user_team=TEAM)

        assert reviewer.account is account


async def test_an_account_of_another_workspace_is_always_a_stranger() -> None:
    async with opened() as ctx:
        elsewhere = await ctx.reviewers.resolve("U0ANA", user_team="T0OTHER")
        nobody = await ctx.reviewers.resolve("U0NOBODY", user_team=TEAM)

        assert elsewhere.account is nobody.account is AccountKind.STRANGER


async def test_a_colleague_of_the_same_organization_is_a_member() -> None:
    async with opened(enterprise="E0") as ctx:
        reviewer = await ctx.reviewers.resolve("U0ANA", user_team="T0OTHER")

        assert reviewer.account is AccountKind.MEMBER


async def test_answers_are_kept_for_a_minute_and_then_asked_again() -> None:
    async with opened() as ctx:
        await ctx.reviewers.resolve("U0ANA", user_team=TEAM, groups=[SUPPORT])
        first = ctx.calls()
        ctx.sandbox.control.set_group(SUPPORT, [])
        ctx.times[0] = 60.0
        kept = await ctx.reviewers.resolve("U0ANA", user_team=TEAM, groups=[SUPPORT])
        assert (ctx.calls(), kept.usergroups) == (first, MINE)

        ctx.times[0] = 60.1
        asked = await ctx.reviewers.resolve("U0ANA", user_team=TEAM, groups=[SUPPORT])

        assert (ctx.calls(), asked.usergroups) == (first + 2, frozenset())


async def test_a_fresh_answer_is_at_most_a_few_seconds_old() -> None:
    async with opened() as ctx:
        await ctx.reviewers.resolve("U0ANA", user_team=TEAM, groups=[SUPPORT])
        ctx.sandbox.control.set_group(SUPPORT, [])
        ctx.sandbox.control.deactivate("U0ANA")
        ctx.times[0] = FRESH_S

        shared = await ctx.reviewers.resolve(
            "U0ANA", user_team=TEAM, groups=[SUPPORT], fresh=True
        )
        ctx.times[0] = FRESH_S + 0.001
        asked = await ctx.reviewers.resolve(
            "U0ANA", user_team=TEAM, groups=[SUPPORT], fresh=True
        )

        assert (shared.usergroups, shared.membership_age_ms) == (MINE, 5_000)
        assert asked.account is AccountKind.DEACTIVATED
        assert (asked.usergroups, asked.membership_age_ms) == (frozenset(), 0)


@pytest.mark.parametrize(("groups", "a_minute"), [(1, 12), (6, 12), (12, 12), (30, 14)])
async def test_group_lookups_stay_below_the_limit(groups: int, a_minute: int) -> None:
    async with opened() as ctx:
        before = 0
        for second in range(300):
            ctx.times[0] = float(second)
            for number in range(groups):
                await ctx.reviewers.group(f"S{number}", fresh=True)
            if second == 119:
                before = ctx.calls("usergroups.users.list")

        assert ctx.calls("usergroups.users.list") - before <= 3 * a_minute + 1


async def test_who_was_given_a_role_just_now_is_not_told_that_they_lack_it() -> None:
    async with opened() as ctx:
        await ctx.reviewers.resolve("U0EVE", user_team=TEAM, groups=[SUPPORT])
        ctx.sandbox.control.set_group(SUPPORT, ["U0EVE"])
        ctx.times[0] = FRESH_S + 1

        reviewer = await ctx.reviewers.resolve(
            "U0EVE", user_team=TEAM, groups=[SUPPORT]
        )

        assert reviewer.usergroups == MINE


async def test_after_a_429_nothing_is_asked_until_retry_after_is_over() -> None:
    async with opened() as ctx:
        ctx.sandbox.faults.plan("rate_limit", "usergroups.users.list", seconds=30)
        first = await ctx.reviewers.resolve("U0ANA", user_team=TEAM, groups=[SUPPORT])
        ctx.times[0] = 29.0
        second = await ctx.reviewers.resolve("U0ANA", user_team=TEAM, groups=[SENIOR])
        assert (first.retry_in_s, second.retry_in_s) == (30, 1)
        assert ctx.calls("usergroups.users.list") == 1

        ctx.times[0] = 30.0
        known = await ctx.reviewers.resolve(
            "U0ANA", user_team=TEAM, groups=[SUPPORT, SENIOR]
        )

        assert (known.usergroups, known.unknown_groups) == (MINE, NONE)


@pytest.mark.parametrize("method", ["users.info", "usergroups.users.list"])
@pytest.mark.parametrize("fault", ["malformed", "no_json", "refuse", "http_500"])
async def test_an_empty_answer_identifies_nobody(fault: str, method: str) -> None:
    async with opened() as ctx:
        ctx.sandbox.faults.plan(fault, method)

        unknown = await ctx.reviewers.resolve("U0ANA", user_team=TEAM, groups=[SUPPORT])
        known = await ctx.reviewers.resolve("U0ANA", user_team=TEAM, groups=[SUPPORT])

        is_open = (
            unknown.account is AccountKind.UNKNOWN or unknown.unknown_groups == MINE
        )
        assert is_open
        assert (known.account, known.usergroups) == (AccountKind.MEMBER, MINE)


async def test_whoever_is_known_is_so_by_the_newest_answers() -> None:
    """A removed role, and a guest, are noticed at Slack's next answer."""
    async with opened() as ctx:
        workspace, seen = ctx.sandbox.workspace, ctx.reviewers
        await seen.resolve("U0ANA", user_team=TEAM, groups=MINE)
        ctx.times[0] = FRESH_S + 1
        before = await seen.resolve("U0ANA", user_team=TEAM, groups=MINE)
        assert before.usergroups == MINE
        assert before.membership_age_ms == 1000 * ctx.times[0]
        # As a member of another workspace they are a stranger all the time.
        stranger = await seen.resolve("U0ANA", user_team="T0OTHER", groups=MINE)
        assert stranger.account is AccountKind.STRANGER
        # The other group was not requested.
        alone = await seen.resolve("U0ANA", user_team=TEAM)
        assert alone.usergroups == NONE

        ctx.sandbox.control.set_group(SUPPORT, [])
        workspace.put_user(replace(workspace.user("U0ANA"), is_restricted=True))
        await seen.resolve("U0BEN", user_team=TEAM, groups=MINE, fresh=True)
        without = await seen.resolve(
            "U0ANA", user_team=TEAM, groups=MINE, is_glance=True
        )
        await seen.resolve("U0ANA", user_team=TEAM, fresh=True)
        guest = await seen.resolve("U0ANA", user_team=TEAM, groups=MINE)

        assert (without.usergroups, without.account) == (NONE, AccountKind.MEMBER)
        assert without.membership_age_ms == before.membership_age_ms
        assert guest.account is AccountKind.GUEST
        assert guest.membership_age_ms == 0
