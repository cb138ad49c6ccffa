"""A message that Slack refuses is posted later, elsewhere or in plainer form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keyturn.bot.delivery import card_updater, queue_sender
from keyturn.bot.ids import Action
from keyturn.bot.web import ABOUT_THE_BLOCKS, WORKSPACE_ERRORS
from keyturn.cli.stack import config_of
from keyturn.gateway.approvals.decisions import Approve, Edit
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.faults import Fault
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.messages import remove
from tests.bot.bot_stack import (
    CHANNEL,
    NOTIFY_DM,
    REFUND,
    TEAM,
    Stack,
    has_button,
    says,
)
from tests.bot.listeners.test_review_together import home
from tests.bot.test_publisher import put
from tests.conftest import eventually

BOT = "U0KEYTURN"
GENERAL = "C0GENERAL"


async def asked_in_general(stack: Stack) -> tuple[Verdict, str]:
    """Send a request as Dan in another channel than that of the cards; return it."""
    ts = await stack.actor("U0DAN").say("#general", "refund, please")
    origin = Origin(channel=GENERAL, thread_ts=ts)
    (verdict,) = await stack.submit(("process_refund", REFUND), origin=origin)
    return verdict, ts


async def told(stack: Stack, words: str) -> JsonObject:
    return await stack.actor("U0DAN").message_with("#general", says(words))


async def told_of(stack: Stack, words: str) -> list[JsonObject]:
    messages = await stack.actor("U0DAN").messages(GENERAL)
    return [message for message in messages if says(words)(message)]


async def is_missed(stack: Stack, verdict: Verdict) -> bool:
    approval = await stack.approval(verdict)
    missing = await stack.store.cards.outdated(stack.keys, 10)
    return approval.id in missing


@pytest.mark.slow
async def test_an_invited_bot_posts_the_card(stack: Stack) -> None:
    stack.sandbox.control.leave(CHANNEL, BOT)
    async with stack.running():
        verdict, ts = await asked_in_general(stack)
        note = await told(stack, "cannot be posted")
        assert note["thread_ts"] == ts
        assert says("not_in_channel")(note)
        assert says("Expires")(note)
        await stack.nothing_is_left()
        assert await is_missed(stack, verdict)
        await home(stack, shows="card missing or outdated")

        stack.sandbox.control.join(CHANNEL, BOT)
        stack.sandbox.control.advance(60)
        await stack.click(verdict, Action.APPROVE)

        assert (await stack.item(verdict)).state is ItemState.AUTHORIZED
        assert len(await told_of(stack, "cannot be posted")) == 1
        assert not await is_missed(stack, verdict)
        approval = await stack.approval(verdict)
        assert await stack.store.cards.trouble(stack.keys, approval.id) is None


async def test_the_report_at_the_end_is_how_the_call_ended(stack: Stack) -> None:
    stack.sandbox.control.leave(CHANNEL, BOT)
    async with stack.running():
        verdict, _ = await asked_in_general(stack)
        await told(stack, "cannot be posted")
        assert await stack.decide(verdict, Approve()) == "decided"
        await stack.execute(verdict)
        stack.sandbox.control.advance(60)

        await told(stack, "done 20")
        await stack.nothing_is_left()

        async def is_let_go() -> bool:
            return not await is_missed(stack, verdict)

        await eventually(is_let_go)
    everything = str(await stack.actor("U0DAN").messages(GENERAL))
    assert "Nothing is approved" not in everything
    assert everything.count("done 20") <= 2, "text and blocks of one"


async def test_a_needed_card_is_posted_again_after_deletion(live: Stack) -> None:
    (verdict,) = await live.submit(("wire_money", {}))
    card = await live.card(verdict)
    await live.nothing_is_left()
    workspace = live.sandbox.workspace
    workspace.drop_message(workspace.messages[CHANNEL][str(card["ts"])])
    assert await live.decide(verdict, Approve()) == "voted"

    anew = await live.card(verdict, lambda m: m["ts"] != card["ts"])

    assert says("1 of 2")(anew)
    assert has_button(anew, Action.APPROVE)
    assert len(await live.cards(verdict)) == 1


def leave(stack: Stack) -> None:
    stack.sandbox.control.leave(CHANNEL, BOT)


def archive(stack: Stack) -> None:
    stack.sandbox.control.archive(CHANNEL)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [leave, archive])
async def test_a_card_whose_channel_is_closed_moves_to_the_fallback(
    stack: Stack, harm: Callable[[Stack], None]
) -> None:
    async with stack.running(fallback_channel=GENERAL):
        (verdict,) = await stack.submit(("wire_money", {}))
        old = await stack.card(verdict)
        await stack.nothing_is_left()
        harm(stack)
        assert await stack.decide(verdict, Approve()) == "voted"

        card = await stack.card(verdict, channel=GENERAL)
        await stack.nothing_is_left()
        stack.sandbox.control.unarchive(CHANNEL)
        stack.sandbox.control.join(CHANNEL, BOT)

        assert says("1 of 2")(card)
        chloe = stack.actor("U0CHLOE")
        await chloe.click(CHANNEL, str(old["ts"]), Action.APPROVE)
        await stack.told("U0CHLOE", "not the newest copy")
        await chloe.click(GENERAL, str(card["ts"]), Action.APPROVE)
        await stack.card(verdict, says("pproved"), channel=GENERAL)
        assert (await stack.item(verdict)).state is ItemState.AUTHORIZED


async def test_an_unarchived_channels_card_is_updated(stack: Stack) -> None:
    async with stack.running():
        (verdict,) = await stack.submit(("wire_money", {}))
        card = await stack.card(verdict)
        await stack.nothing_is_left()
        stack.sandbox.control.archive(CHANNEL)
        assert await stack.decide(verdict, Approve()) == "voted"
        await stack.actor("U0DAN").message_with(
            "D0DAN", says("cannot be brought up to date")
        )
        await stack.nothing_is_left()
    stack.sandbox.control.unarchive(CHANNEL)

    async with stack.running():
        shown = await stack.card(verdict, says("1 of 2"))

    assert shown["ts"] == card["ts"]
    assert not await is_missed(stack, verdict)


@pytest.mark.parametrize(
    ("given", "is_fine"),
    [
        ("", True),
        ("#approvals-backup", True),
        ("C0123456789", True),
        ("approvals", False),
        ("<!channel>", False),
        ("#a b", False),
    ],
)
def test_a_fallback_channel_is_an_id_or_a_name(given: str, *, is_fine: bool) -> None:
    env = {
        "SLACK_BOT_TOKEN": "xoxb-1",
        "SLACK_APP_TOKEN": "xapp-1",
        "KEYTURN_SECRET": "0" * 64,
        "KEYTURN_SLACK_FALLBACK_CHANNEL": given,
        "KEYTURN_SLACK_TEAM": "T0SANDBOX",
    }
    if not is_fine:
        with pytest.raises(SettingsError, match="KEYTURN_SLACK_FALLBACK_CHANNEL"):
            Settings.load(None, env)
        return
    config = config_of(Settings.load(None, env), env["SLACK_BOT_TOKEN"])

    assert (config.fallback_channel, config.team) == (given, "T0SANDBOX")


async def test_the_fallback_channel_reports_a_freeze(stack: Stack) -> None:
    stack.sandbox.control.leave(CHANNEL, BOT)
    async with stack.running(fallback_channel=GENERAL):
        stop = Event(
            name=EventName.FREEZE_SET,
            tenant="default",
            tool="post_notice",
            actor=f"{TEAM}/U0ANA",
        )
        await stack.store.outbox(stack.keys, reader="").put(stop)

        await stack.actor("U0DAN").message_with(GENERAL, says("Frozen"))
        await stack.nothing_is_left()


POST = "chat.postMessage"
ASKED_IN = "C0GENERAL"


def refuse(stack: Stack, error: str, *, calls: int = 1) -> None:
    stack.sandbox.faults.plan(Fault.REFUSE, POST, error=error, calls=calls)


async def asked(stack: Stack) -> dict[str, str]:
    """Send a request as Dan; return the place of the agent's answers."""
    ts = await stack.actor("U0DAN").say("#general", "@keyturn refund")
    return {"channel": ASKED_IN, "thread_ts": ts}


@pytest.mark.parametrize("error", sorted(ABOUT_THE_BLOCKS))
async def test_a_refused_answer_is_reported(live: Stack, error: str) -> None:
    place = await asked(live)
    refuse(live, error)

    await put(live, EventName.RUN_FINISHED, text="Done", **place)

    dan = live.actor("U0DAN")
    told = await dan.message_with("#general", says("Slack refuses the rest"))
    assert told["thread_ts"] == place["thread_ts"]


async def test_a_note_that_slack_never_shows_holds_nothing_up(live: Stack) -> None:
    verdict = await live.refund()
    card = await live.card(verdict)
    refuse(live, "invalid_blocks", calls=2)

    await live.decide(verdict, Edit(args={**REFUND, "amount": 5}))
    await live.nothing_is_left()

    assert await live.notes(card) == []
    await live.execute(verdict, ok=False)
    await live.nothing_is_left()
    assert await live.notes(card)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once after a refusal to the whole workspace."""
    monkeypatch.setattr(queue_sender, "BROKEN_S", 0.02)
    monkeypatch.setattr(card_updater, "BROKEN_S", 0.02)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("error", sorted(WORKSPACE_ERRORS))
async def test_an_answer_waits_for_its_workspace(live: Stack, error: str) -> None:
    place = await asked(live)
    refuse(live, error, calls=2)

    await put(live, EventName.RUN_FINISHED, text="Done", **place)

    await live.actor("U0DAN").message_with("#general", says("Done"))


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("method", [POST, "conversations.open"])
async def test_a_refused_direct_message_is_repeated(live: Stack, method: str) -> None:
    live.put_policy(NOTIFY_DM)
    # The card is posted in its channel first.
    after = 1 if method == POST else 0
    live.sandbox.faults.plan(
        Fault.REFUSE, method, error="team_added_to_org", calls=2, after=after
    )
    verdict = await live.refund()

    await live.card(verdict, channel="D0ANA")
    assert await live.card(verdict, channel=CHANNEL)


def is_settled(card: JsonObject) -> bool:
    return not has_button(card, Action.APPROVE)


async def test_a_deleted_card_with_replies_is_posted_anew(live: Stack) -> None:
    (verdict,) = await live.submit(("wire_money", {}))
    card = await live.card(verdict)
    ts = str(card["ts"])
    await live.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)
    await live.card(verdict, says("1 of 2"))
    await live.drawn(verdict)
    await live.note(card)
    slack = live.sandbox.control.slack
    assert remove(slack, slack.workspace.messages[CHANNEL][ts]), "has replies"
    assert await live.decide(verdict, Edit(args={"amount": 1}), "U0BEN") == "voted"

    anew = await live.card(verdict, lambda m: m["ts"] != ts)

    await live.actor("U0CHLOE").click(CHANNEL, str(anew["ts"]), Action.APPROVE)
    await live.card(verdict, is_settled)
