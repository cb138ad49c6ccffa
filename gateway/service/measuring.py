"""Measure a call: what it uses of which windows, and what is known of its moment."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.approvals import digest
from gateway.approvals.record import Context, Record
from gateway.approvals.strict_json import JsonObject
from gateway.policy.facts import Facts
from gateway.policy.rules import Policy
from gateway.policy.windows import window_uses
from gateway.store.attention import Standing
from gateway.store.keys import Keys
from gateway.store.windows import Use, use_of

USE_TAG = "twokey/v1/use"


class Measured(Record):
    """What one call uses, and why a share is not known."""

    uses: tuple[Use, ...] = ()
    problems: tuple[str, ...] = ()


def measure(
    policy: Policy,
    keys: Keys,
    ctx: Context,
    tool: str,
    args: JsonObject,
    *,
    requester: str,
) -> Measured:
    """Return what a call with these arguments uses.

    The same call has the same uses each time, so that nothing counts it twice.
    """
    found = window_uses(
        policy, agent=ctx.agent, tool=tool, args=args, requester=requester
    )
    call = digest.tagged_hash(USE_TAG, digest.canonical({**ctx.as_dict()}))
    return Measured(
        uses=tuple(
            use_of(
                keys.window(ctx.tenant, use.window, use.key),
                name=use.window,
                call=call.removeprefix("sha256:")[:32],
                micro=use.amount_micro,
                within_ms=use.within_ms,
            )
            for use in found.uses
        ),
        problems=found.problems,
    )


def facts_of(
    standing: Standing,
    measured: Measured,
    totals: Mapping[str, int],
    *,
    requester: str,
    asked: int,
) -> Facts:
    """Return what is known of a call's moment.

    Args:
        standing: of the agent.
        measured: what the call uses.
        totals: what each of its windows comes to.
        requester: Slack id of who asked the agent, or empty.
        asked: what the agent asked people for in ten minutes, this call included.
    """
    return Facts(
        now_ms=standing.now_ms,
        windows=dict(totals),
        requester=requester,
        requests_10m=asked,
        failures_1h=standing.failures,
        rejections_in_row=standing.refusals,
        problems=measured.problems,
    )
