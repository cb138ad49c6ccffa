"""A call that nobody could make sense of does not stop the rest of its turn."""

from __future__ import annotations

from tests.resume.house import House


async def test_a_call_without_a_name_does_not_run_and_its_neighbour_waits(
    house: House,
) -> None:
    async with house.working():
        await house.ask(("", {"order": "1"}), ("refund", {"order": "1", "amount": 5}))
        [item] = await house.asked()
        await house.decide(item)
        words = await house.words()

    assert item.tool == "refund"
    assert "names no tool" in words
    assert words.endswith("refunded 1 5")
