"""A card shows the totals of other calls in a window, and no hidden amount."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.precedents import WindowTotal
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.windows import MICRO
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness
from tests.service.windowed import WINDOWED, refund


async def totals(store: Store, redact: str = "[]") -> tuple[WindowTotal, ...]:
    """Return the text about windows on the card of the second of two refunds."""
    text = WINDOWED.replace(
        "process_refund:\n    tier: approve\n",
        f"process_refund:\n    tier: approve\n    redact: {redact}\n",
    )
    harness = ServiceHarness(store, load_policy(text, "policy.yml"))
    await harness.submit(refund(400), thread="t1")
    _, (second,) = await harness.submit(refund(49), thread="t2")
    approval = second.item_id.partition(".")[0]
    shown = await harness.reviews.read_as_of_now(approval)
    assert shown is not None
    return shown.approval.items[0].past.totals


async def test_a_total_is_of_the_other_calls(store: Store) -> None:
    (found,) = await totals(store)

    assert (found.window, found.by) == ("refunds", "args.customer")
    assert (found.others_micro, found.is_count) == (400 * MICRO, False)


@pytest.mark.parametrize(
    "redact", ["[args.amount]", "[args.customer]", "['args.*']", "[args.amount.minor]"]
)
async def test_a_total_of_what_is_hidden_is_not_shown(
    store: Store, redact: str
) -> None:
    assert await totals(store, redact) == ()


OTHER_TOOL = WINDOWED.replace(
    "    tier: auto\n", "    tier: auto\n    redact: [args.amount]\n"
)
OTHER_AGENT = f"""{WINDOWED}
agents: {{billing: {{tools: {{process_refund: {{redact: [args.customer]}}}}}}}}
"""


@pytest.mark.parametrize("text", [OTHER_TOOL, OTHER_AGENT])
async def test_a_total_of_what_another_tool_or_agent_hides_is_not_shown(
    store: Store, text: str
) -> None:
    harness = ServiceHarness(store, load_policy(text, "policy.yml"))
    await harness.submit(refund(49, tool="small_refund"), thread="t1")
    _, (second,) = await harness.submit(refund(51), thread="t2")

    shown = await harness.reviews.read_as_of_now(second.item_id.partition(".")[0])

    assert shown is not None
    assert shown.approval.items[0].past.totals == ()
