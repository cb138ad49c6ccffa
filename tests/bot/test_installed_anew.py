"""An app that is removed and installed anew, as another bot user, goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.tokens import TokenKind
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.bot.test_publisher import nothing_is_left
from tests.conftest import eventually

NEW_BOT = "U0NEWBOT"
SECRET = b"a key that outlives every bot token"


def install_anew(stack: Stack) -> None:
    """Give the app another bot user and token; it is in no channel yet."""
    slack, workspace = stack.sandbox.control.slack, stack.sandbox.workspace
    old = workspace.user(workspace.app.bot_user)
    for channel in list(workspace.channels.values()):
        # The direct message channel stays that of the earlier bot.
        if channel.peer is None and old.id in channel.members:
            workspace.leave(channel.id, old.id)
    workspace.app = replace(workspace.app, bot_user=NEW_BOT, bot_id="B0NEWBOT")
    workspace.put_user(replace(old, id=NEW_BOT))
    workspace.set_deleted(old.id, deleted=True)
    slack.bot_token = slack.tokens.issue(TokenKind.BOT)


@pytest.mark.slow
async def test_a_card_of_the_earlier_bot_is_posted_anew_once_the_bot_is_invited(
    stack: Stack,
) -> None:
    async with stack.running(seal_key=SECRET):
        (verdict,) = await stack.submit(("wire_money", {}))
        old = await stack.card(verdict)
        await nothing_is_left(stack)
        await stack.sandbox.control.uninstall_app()
    install_anew(stack)
    ana, chloe = stack.actor("U0ANA"), stack.actor("U0CHLOE")
    async with stack.running(seal_key=SECRET):
        await ana.click(CHANNEL, str(old["ts"]), Action.APPROVE)

        await eventually(lambda: is_told(stack))
        stack.sandbox.control.join(CHANNEL, NEW_BOT)
        anew = await stack.card(verdict, lambda m: m["ts"] != old["ts"])
        assert says("1 of 2")(anew)
        await chloe.click(CHANNEL, str(old["ts"]), Action.APPROVE)
        await stack.told("U0CHLOE", "not the newest copy")
        assert (await stack.approval(verdict)).items[0].is_pending
        await chloe.click(CHANNEL, str(anew["ts"]), Action.APPROVE)
        assert (await stack.approval(verdict)).items[0].state is ItemState.AUTHORIZED


async def is_told(stack: Stack) -> bool:
    """Return whether the new bot has told the requester why the card is old."""
    sent = stack.sandbox.workspace.messages["D0DAN0"].values()
    return any("not_in_channel" in str(one.blocks) for one in sent)
