"""Reviewers stop and start things from Slack, and everybody is told."""

from __future__ import annotations

import json

import pytest

from tests.bot.bot_house import CHANNEL, POLICY, TEAM, House
from tests.bot.markup_audit import assert_tame
from tests.bot.strategies import CANARY
from tests.bot.test_publisher import nothing_is_left
from twokey.bot.ids import COMMAND
from twokey.gateway.approvals.decisions import Click, Reject, Reviewer, Standing
from twokey.gateway.approvals.events import EventName
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.wire import VerdictKind
from twokey.gateway.store.freezes import Scope, ScopeKind
from twokey.gateway.store.outbox import audit_entries
from twokey.sandbox.json_types import JsonObject

HOSTILE = f"<!channel> *bold* {CANARY} <https://evil.example|click>"
ANA = Reviewer(
    team=TEAM,
    user="U0ANA",
    usergroups=frozenset({"S0SUPPORT"}),
    standing=Standing.MEMBER,
)
LOCKED = POLICY.replace("lonely: {tier: approve,", "lonely: {reviewers: senior,")


async def ask(house: House, words: str, answer: str, user: str = "U0ANA") -> None:
    await house.actor(user).command(COMMAND, words, CHANNEL)
    await house.told(user, answer)


async def posted(house: House, *words: str) -> JsonObject:
    """Wait for a message for everybody that holds all of these words."""

    def is_it(message: JsonObject) -> bool:
        shown = json.dumps(message["blocks"], ensure_ascii=False)
        return not message["ephemeral"] and all(word in shown for word in words)

    return await house.actor("U0BEN").message_with(CHANNEL, is_it)


@pytest.mark.parametrize(
    ("words", "scope", "named"),
    [
        ("tool send_email", Scope(kind=ScopeKind.TOOL, name="send_email"), "The tool"),
        ("agent support", Scope(kind=ScopeKind.AGENT, name="support"), "The agent"),
        ("everything", Scope(kind=ScopeKind.TENANT), "Everything"),
    ],
)
async def test_a_reviewer_stops_something_and_lets_it_run_again(
    house: House, words: str, scope: Scope, named: str
) -> None:
    async with house.running():
        await ask(house, f"freeze {words} wrong <b>amounts</b>", "is frozen: nothing")

        message = await posted(house, named, "wrong <b>amounts</b>", "<@U0ANA>")
        (freeze,) = await house.reviews.freezes.frozen()
        assert (freeze.scope, freeze.by) == (scope, f"{TEAM}/U0ANA")
        assert f"/approvals unfreeze {words}" in json.dumps(message["blocks"])
        (verdict,) = await house.submit(("send_email", {"to": "x"}))
        assert verdict.kind is VerdictKind.DENY
        await ask(house, f"freeze {words}", "frozen already; nothing changed")

        await ask(house, f"unfreeze {words} mended", "may run again", user="U0BEN")

        await posted(house, "May run again", named, "mended", "<@U0BEN>")
        assert await house.reviews.freezes.frozen() == ()
        await ask(house, f"unfreeze {words}", "was not frozen; nothing changed")


@pytest.mark.parametrize("user", ["U0EVE", "U0GUEST"])
@pytest.mark.parametrize("verb", ["freeze", "unfreeze"])
async def test_who_could_review_nothing_of_it_stops_and_starts_nothing(
    house: House, verb: str, user: str
) -> None:
    tool = Scope(kind=ScopeKind.TOOL, name="send_email")
    if verb == "unfreeze":
        await house.reviews.freezes.freeze(tool, "cli/root", "")
    before = await house.reviews.freezes.frozen()
    async with house.running():
        await house.actor(user).command(COMMAND, f"{verb} tool send_email", CHANNEL)

        await house.told(user, "cannot decide" if user == "U0GUEST" else "Only")
        assert await house.reviews.freezes.frozen() == before


async def test_a_role_stops_its_own_tools_and_not_those_of_others(house: House) -> None:
    strict = LOCKED.replace("of: [support, senior], at_least", "of: senior, at_least")
    house.policy = load_policy(strict, "policy.yml")
    async with house.running():
        await ask(house, "freeze tool lonely", "Only senior can decide this")

        await ask(house, "freeze tool lonely", "is frozen", user="U0CHLOE")


async def test_a_tool_that_no_policy_names_is_frozen_with_a_question(
    house: House,
) -> None:
    async with house.running():
        await ask(house, "freeze tool send_mail", "is that its name?")

        assert len(await house.reviews.freezes.frozen()) == 1


@pytest.mark.parametrize(
    "words",
    ["freeze", "freeze tool", "freeze shop refunds", "unfreeze", "unfreeze agent"],
)
async def test_what_cannot_be_read_changes_nothing(house: House, words: str) -> None:
    async with house.running():
        await ask(house, words, "Write `/approvals freeze tool NAME why`")

        assert await house.reviews.freezes.frozen() == ()


async def test_what_is_too_long_changes_nothing(house: House) -> None:
    async with house.running():
        await ask(house, f"freeze tool send_email {'x' * 501}", "at most 500")
        await ask(house, f"freeze tool {'x' * 201} why", "too long")

        assert await house.reviews.freezes.frozen() == ()


async def test_hostile_names_and_reasons_are_shown_and_never_read(house: House) -> None:
    agent = f"sup\u202eport `*_<!here>{CANARY}"
    async with house.running():
        await house.reviews.freezes.freeze(
            Scope(kind=ScopeKind.AGENT, name=agent), f"{TEAM}/<!channel>", HOSTILE
        )

        message = await posted(house, HOSTILE)
        assert_tame(message["blocks"], str(message["text"]))
        assert "⟦U+202E⟧" in json.dumps(message["blocks"], ensure_ascii=False)
        await house.actor("U0ANA").command(COMMAND, "frozen", CHANNEL)
        listed = await house.actor("U0ANA").message_with(
            CHANNEL, lambda m: m["ephemeral"] and "1 frozen" in str(m["text"])
        )
        assert_tame(listed["blocks"], str(listed["text"]))


async def test_members_read_what_is_frozen_and_by_whom(house: House) -> None:
    async with house.running():
        await ask(house, "frozen", "Nothing is frozen")
        for number in range(17):
            scope = Scope(kind=ScopeKind.TOOL, name=f"tool_{number}")
            await house.reviews.freezes.freeze(scope, "cli/root", "a drill")

        await ask(house, "frozen", "17 frozen or paused")

        listed = (await house.actor("U0ANA").ephemerals(CHANNEL))[-1]
        shown = json.dumps(listed["blocks"], ensure_ascii=False)
        assert "The tool tool_0: frozen. a drill" in shown
        assert "`cli/root`" in shown
        assert "… and 2 more." in shown
        await ask(house, "frozen", "Only members", user="U0GUEST")


async def test_a_paused_agent_is_announced_once_and_let_go_on(house: House) -> None:
    house.policy = load_policy(
        POLICY + "protect: {pause_after_rejections: 1}\n", "policy.yml"
    )
    async with house.running():
        verdict = await house.refund()
        approval = await house.approval(verdict)
        click = Click(
            approval=approval.id,
            index=0,
            version=1,
            action_hash=approval.items[0].action_hash,
        )
        await house.reviews.decide(click, Reject(reason="no"), ANA)

        message = await posted(house, "Paused", "The agent support", "in a row")
        assert message["thread_ts"] is None
        assert "/approvals unfreeze agent support" in json.dumps(message["blocks"])
        await ask(house, "unfreeze agent support", "may run again")
        await posted(house, "May run again", "The agent support")
    names = [event.name for event in await audit_entries(house.store.conn, house.keys)]
    assert names.count(EventName.AGENT_PAUSED) == 1


async def test_a_freeze_that_the_channel_refuses_is_not_said_for_ever(
    house: House,
) -> None:
    private = POLICY.replace("channel: C0APPROVALS", "channel: C0PRIVATE", 1)
    house.policy = load_policy(private, "policy.yml")
    async with house.running():
        await ask(house, "freeze everything", "is frozen")

        await nothing_is_left(house)

        refused = [call.error for call in house.sandbox.calls if call.error]
        assert refused == ["channel_not_found"]
