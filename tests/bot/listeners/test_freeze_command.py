"""Reviewers freeze and unfreeze from Slack, and a channel is notified."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import COMMAND
from keyturn.gateway.approvals.decisions import (
    Gesture,
    Reject,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.wire import VerdictKind
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, TEAM, Stack, blocks_of
from tests.bot.markup_audit import assert_tame
from tests.bot.strategies import CANARY

HOSTILE = f"<!channel> *bold* {CANARY} <https://evil.example|click>"


async def ask(stack: Stack, words: str, answer: str, user: str = "U0ANA") -> None:
    await stack.actor(user).command(COMMAND, words, CHANNEL)
    await stack.told(user, answer)


async def posted(stack: Stack, *words: str) -> JsonObject:
    """Wait for a public message with all of these words."""

    def is_it(message: JsonObject) -> bool:
        is_public = not message["ephemeral"]
        return is_public and all(word in blocks_of(message) for word in words)

    return await stack.actor("U0BEN").message_with(CHANNEL, is_it)


@pytest.mark.parametrize(
    ("words", "scope", "named"),
    [
        (
            "tool send_email",
            FreezeScope(kind=ScopeKind.TOOL, name="send_email"),
            "The tool",
        ),
        (
            "agent support",
            FreezeScope(kind=ScopeKind.AGENT, name="support"),
            "The agent",
        ),
        ("everything", FreezeScope(kind=ScopeKind.TENANT), "Everything"),
    ],
)
async def test_a_reviewer_stops_something_and_lets_it_run_again(
    live: Stack, words: str, scope: FreezeScope, named: str
) -> None:
    await ask(
        live,
        f"freeze {words} wrong <b>amounts</b>",
        "is frozen. Nothing starts, not even approved calls",
    )

    message = await posted(live, named, "wrong <b>amounts</b>", "<@U0ANA>")
    (freeze,) = await live.reviews.freezes.frozen()
    assert (freeze.scope, freeze.by) == (scope, f"{TEAM}/U0ANA")
    assert f"/approvals unfreeze {words}" in blocks_of(message)
    (verdict,) = await live.submit(("send_email", {"to": "x"}))
    assert verdict.kind is VerdictKind.DENY
    await ask(live, f"freeze {words}", "frozen already; nothing changed")

    await ask(live, f"unfreeze {words} mended", "may run again", user="U0BEN")

    await posted(live, "Unfrozen", named, "mended", "<@U0BEN>")
    for name in (EventName.FREEZE_SET, EventName.FREEZE_LIFTED):
        (entry,) = await live.audit(name)
        assert entry.data["gesture"] == Gesture.SLASH_COMMAND
    assert await live.reviews.freezes.frozen() == ()
    await ask(live, f"unfreeze {words}", "was not frozen; nothing changed")


async def test_a_member_without_a_role_freezes_nothing(live: Stack) -> None:
    await ask(live, "freeze everything why", "Please ask one of them", "U0EVE")

    assert await live.reviews.freezes.frozen() == ()


@pytest.mark.parametrize("verb", ["freeze", "unfreeze"])
@pytest.mark.parametrize("words", ["tool process_refnd", "agent support1"])
async def test_a_wrong_name_is_refused(live: Stack, verb: str, words: str) -> None:
    await ask(live, f"{verb} {words}", "did you mean")

    assert await live.reviews.freezes.frozen() == ()


@pytest.mark.parametrize(
    "words",
    ["freeze", "freeze tool", "freeze shop refunds", "unfreeze", "unfreeze agent"],
)
async def test_what_cannot_be_read_changes_nothing(live: Stack, words: str) -> None:
    await ask(live, words, "Write `/approvals freeze tool NAME REASON`")

    assert await live.reviews.freezes.frozen() == ()


async def test_hostile_names_and_reasons_are_shown_and_never_read(stack: Stack) -> None:
    agent = f"sup\u202eport `*_<!here>{CANARY}"
    async with stack.running():
        await stack.reviews.freezes.freeze(
            FreezeScope(kind=ScopeKind.AGENT, name=agent), f"{TEAM}/<!channel>", HOSTILE
        )

        message = await posted(stack, HOSTILE)
        assert_tame(message["blocks"], str(message["text"]))
        assert "⟦U+202E⟧" in blocks_of(message)
        await stack.actor("U0ANA").command(COMMAND, "frozen", CHANNEL)
        listed = await stack.actor("U0ANA").message_with(
            CHANNEL,
            lambda m: m["ephemeral"] and "Frozen or paused: 1." in str(m["text"]),
        )
        assert_tame(listed["blocks"], str(listed["text"]))


async def test_members_read_what_is_frozen_and_by_whom(live: Stack) -> None:
    await ask(live, "frozen", "Nothing is frozen")
    for number in range(17):
        scope = FreezeScope(kind=ScopeKind.TOOL, name=f"tool_{number}")
        await live.reviews.freezes.freeze(scope, "cli/root", "a drill")

    await ask(live, "frozen", "Frozen or paused: 17.")

    listed = (await live.actor("U0ANA").ephemerals(CHANNEL))[-1]
    for words in ("The tool tool_0 is frozen: a drill", "`cli/root`", "… and 2 more."):
        assert words in blocks_of(listed)
    await ask(live, "frozen", "Only members", user="U0GUEST")


@pytest.mark.slow
async def test_a_paused_agent_is_announced_with_the_command_that_ends_it(
    live: Stack,
) -> None:
    live.put_policy(of=POLICY + "protect: {pause_after_rejections: 1}\n")
    assert await live.decide(await live.refund(), Reject(reason="no")) == "decided"

    message = await posted(live, "Paused", "The agent support", "in a row")

    assert message["thread_ts"] is None
    assert "/approvals unfreeze agent support" in blocks_of(message)
