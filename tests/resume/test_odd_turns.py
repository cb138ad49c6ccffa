"""An unreadable call does not stop the rest of its turn."""

from __future__ import annotations

import pytest

from tests.resume.resume_stack import Stack


@pytest.mark.slow
async def test_a_call_without_a_name_does_not_run_and_its_neighbour_waits(
    stack: Stack,
) -> None:
    async with stack.working():
        await stack.ask(("", {"order": "1"}), ("refund", {"order": "1", "amount": 5}))
        [item] = await stack.asked()
        await stack.decide(item)
        words = await stack.words()

    assert item.tool == "refund"
    assert "names no tool" in words
    assert words.endswith("refunded 1 5")
