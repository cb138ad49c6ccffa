"""Set up a desk whose refunds are summed up for each customer."""

from __future__ import annotations

from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy.windows import MICRO, window_key
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.store import Store
from tests.service.harness import POLICY, ServiceHarness

WINDOWS = """
windows:
  refunds:
    {tools: [process_refund, small_refund], by: args.customer, sum: args.amount,
     within: 24h}
"""
LIMIT = """process_refund:
    tier: approve
    raise:
      - {to: escalate, when: "windows.refunds > 1000", because: "over 1,000 in a day"}
      - {to: deny, when: "windows.refunds > 5000", because: "over 5,000 in a day"}
  small_refund:
    tier: auto
    raise:
      - {to: deny, when: "windows.refunds > 5000", because: "over 5,000 in a day"}
"""
WINDOWED = POLICY.replace("process_refund: {tier: approve}\n", LIMIT) + WINDOWS


def windowed_policy() -> Policy:
    """Return the desk's policy, with refunds over 1,000 a day for two people."""
    return load_policy(WINDOWED, "policy.yml")


def windowed(store: Store) -> ServiceHarness:
    """Return a desk with that policy."""
    return ServiceHarness(store, windowed_policy())


def refund(
    amount: float, customer: str = "c7", tool: str = "process_refund"
) -> tuple[str, JsonObject]:
    """Return a call that refunds a customer."""
    return tool, {"amount": amount, "customer": customer}


async def refunded(harness: ServiceHarness, customer: str = "c7") -> float:
    """Return what counts of a customer's refunds now."""
    total = await harness.total("refunds", window_key(customer))
    return total / MICRO
