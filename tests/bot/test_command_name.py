"""A bot answers to the command name that its settings give it, and to no other."""

from __future__ import annotations

import pytest

from keyturn.sandbox.client import UserActionFailed
from keyturn.sandbox.json_types import as_objects
from tests.bot.bot_stack import CHANNEL, Stack
from tests.conftest import eventually

NAME = "/refund-approvals"


async def test_a_bot_with_another_command_name_answers_to_it(
    each_stack: Stack,
) -> None:
    stack = each_stack
    stack.sandbox.workspace.commands = (NAME,)
    ana = stack.actor("U0ANA")
    async with stack.running(command=NAME):
        await ana.command(NAME, "help", CHANNEL)
        told = await stack.told("U0ANA", "What I do")
        await ana.open_home()

        async def is_there() -> bool:
            return await ana.home() is not None

        await eventually(is_there)
        home = await ana.home()
        with pytest.raises(UserActionFailed):
            await ana.command("/approvals", "help", CHANNEL)

    (help_text,) = [
        str(message["blocks"] or message["text"])
        for message in await ana.ephemerals(CHANNEL)
        if "What I do" in str(message)
    ]
    assert f"{NAME} freeze tool" in help_text
    assert "/approvals`" not in help_text.replace(NAME, "")
    assert home
    assert f"{NAME} delegate" in str(as_objects(home["blocks"]))
    assert told
    assert stack.sandbox.problems == []
