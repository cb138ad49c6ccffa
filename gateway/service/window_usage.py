"""Collect a policy's inputs for one call: its use of windows, and other facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keyturn.gateway.approvals.record import Context, Item
from keyturn.gateway.policy.raise_rules import Facts
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy.windows import window_uses
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.agent_load import AgentLoad
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.windows import Use, use_of

USE_TAG = "keyturn/v1/use"


class CallUsage(Record):
    """What one call adds to its windows, and why a share is not known.

    Attributes:
        uses: given back when the call does not run.
        requests: kept, also when the call does not run.
        problems: sentences of ours; each one raises.
    """

    uses: tuple[Use, ...] = ()
    requests: tuple[Use, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def reserved(self) -> tuple[Use, ...]:
        """Return everything that is reserved while the call is evaluated."""
        return (*self.uses, *self.requests)

    def requests_before(self, totals: Mapping[str, int]) -> dict[str, int]:
        """Return what windows of requests held before this call, by window key."""
        return {one.window: totals[one.name] - one.micro for one in self.requests}


def usage_of(
    policy: Policy,
    keys: Keys,
    ctx: Context,
    tool: str,
    args: JsonObject,
    *,
    requester: str,
    declared_schema: JsonObject | None,
) -> CallUsage:
    """Return what a call with these arguments uses.

    The same call has the same uses each time, so that nothing counts it twice.
    """
    found = window_uses(
        policy,
        agent=ctx.agent,
        tool=tool,
        args=args,
        requester=requester,
        declared_schema=declared_schema,
    )
    # From where the call comes, so that the same call holds the same use again when it
    # is submitted again.
    call = digest.tagged_hash(USE_TAG, digest.canonical({**ctx.as_dict()}))
    uses, requests = list[Use](), list[Use]()
    for one in found.uses:
        (requests if one.is_request else uses).append(
            use_of(
                keys.window(one.window, one.key),
                name=one.window,
                # 128 bits are enough to tell calls apart, and a window may hold
                # thousands.
                call=call.removeprefix("sha256:")[:32],
                micro=one.amount_micro,
                within_ms=one.within_ms,
            )
        )
    return CallUsage(
        uses=tuple(uses), requests=tuple(requests), problems=found.problems
    )


def totals_of_waiting(
    item: Item, usage: CallUsage, totals: Sequence[int]
) -> dict[str, int]:
    """Return what the windows of a waiting call come to, by name.

    Uses count with everything else that is reserved now. Requests count with those
    that came before: a later one changes nothing about the place of this one. In a
    window that the call did not ask in, all that are counted now came before.

    Args:
        item: the call.
        usage: what it uses.
        totals: what its windows come to now, in the order of ``usage.reserved``.
    """
    names = (use.name for use in usage.reserved)
    found = dict(zip(names, totals, strict=True))
    for one in usage.requests:
        before = item.requests_before.get(one.window)
        if before is not None:
            found[one.name] = before + one.micro
    return found


def facts_of(
    load: AgentLoad,
    usage: CallUsage,
    totals: Mapping[str, int],
    *,
    requester: str,
    requests_10m: int,
) -> Facts:
    """Return what is known of a call's moment.

    Args:
        load: of the agent.
        usage: what the call uses.
        totals: what each of its windows comes to.
        requester: Slack id of who asked the agent, or empty.
        requests_10m: what the agent asked people for in ten minutes, this call
        included.
    """
    return Facts(
        now_ms=load.now_ms,
        windows=dict(totals),
        requester=requester,
        requests_10m=requests_10m,
        failures_1h=load.failures,
        rejections_in_row=load.rejections,
        problems=usage.problems,
    )
