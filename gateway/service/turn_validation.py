"""Check whose run a turn is in, and canonicalize its arguments."""

from __future__ import annotations

from typing import cast

from twokey.gateway.errors import BadJson, NotAllowed
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.strict_json import MAX_BYTES, JsonObject, parse_object
from twokey.gateway.protocol.wire import ProposedCall, Turn


def check_agent(turn: Turn, tenant: str) -> None:
    """Check that a turn of a tenant that is split is of the agent of its run.

    Raises:
        NotAllowed: when an agent with another name asks inside the run. It may work
            inside others as well, and what counts for one agent cannot be added up over
            several shards.
    """
    agent, outermost = turn.ref.agent, turn.ref.run_ref.agent
    if agent != outermost:
        raise NotAllowed(
            f"Tenant {tenant!r} has 'split_by_agent', and agent {agent!r} asks inside "
            f"a run of {outermost!r}, so no call was evaluated or ran: what counts for "
            "one agent is in one shard. Give both gates one name, as in "
            f"ApprovalMiddleware({outermost!r}), or use a tenant without "
            "'split_by_agent'."
        )


def canonical(call: ProposedCall) -> ProposedCall:
    """Return a call as it would run: what its canonical bytes parse to."""
    try:
        args = cast("JsonObject", digest.parsed(call.args))
    except BadJson:
        return call  # refused with a sentence when its document is made
    return call.with_(args=args, original_args=_original_args(call))


def _original_args(call: ProposedCall) -> JsonObject | None:
    """Return what the model wrote; what no call could hold is not evidence either."""
    if call.original_args is None:
        return None
    try:
        text = digest.canonical(call.original_args)
    except BadJson:
        return None
    return parse_object(text) if len(text) <= MAX_BYTES else None
