"""A bot answers to the command name that its settings give it, and to no other."""

from __future__ import annotations

import pytest

from keyturn.sandbox.client import UserActionFailed
from tests.bot.bot_stack import CHANNEL, Stack

NAME = "/refund-approvals"


async def test_the_bot_answers_to_its_command_name_only(each_stack: Stack) -> None:
    stack = each_stack
    stack.sandbox.workspace.commands = (NAME,)
    ana = stack.actor("U0ANA")
    async with stack.running(command=NAME):
        await ana.command(NAME, "help", CHANNEL)
        told = await stack.told("U0ANA", "What I do")
        await ana.open_home()
        home = await ana.wait_for(lambda state: state["home"])
        with pytest.raises(UserActionFailed):
            await ana.command("/approvals", "help", CHANNEL)

    assert f"{NAME} freeze tool" in told
    assert "/approvals`" not in told.replace(NAME, "")
    assert f"{NAME} delegate" in str(home)
    assert stack.sandbox.problems == []
