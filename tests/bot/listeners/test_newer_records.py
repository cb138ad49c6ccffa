"""Lists say that calls of a newer version wait, which this version cannot read."""

from __future__ import annotations

from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.listeners.test_read_access import answer
from tests.bot.listeners.test_review_together import home, text_of
from twokey.gateway.store import codec

SAID = "calls wait that a newer version of Twokey wrote"


async def newer_call(stack: Stack) -> None:
    """Let a call wait whose record the next version wrote."""
    verdict = await stack.refund()
    await stack.card(verdict)
    head = stack.keys.head((await stack.approval(verdict)).id)
    await stack.store.conn.command("HSET", head, "format", f"{codec.FORMAT + 1}")


async def test_no_list_calls_empty_what_a_newer_version_would_fill(
    stack: Stack,
) -> None:
    async with stack.running():
        await newer_call(stack)

        listed = await answer(stack, "U0ANA", "list", CHANNEL)
        ana = await home(stack, shows="Waiting for you: 0 or more")
        tab = text_of(await ana.home())

    assert SAID in listed
    assert "Nothing is waiting" not in listed
    assert SAID in tab
    assert "Enjoy the quiet" not in tab
