"""Verify that a claim authorizes exactly the call that this agent's model made.

Nothing here trusts the gateway's answer for what to run: a claim brings the document
that people saw, and it is compared with the call that the model made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from twokey.agent.canonical import same
from twokey.agent.rechecks import Recheck
from twokey.gateway.errors import BadJson
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.business_state import is_same_but_state
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import Answer, CheckState, Claimed, TurnRef, Verdict


@dataclass(frozen=True, slots=True)
class HeldCall:
    """One call as this agent knows it; ``args`` are the model's.

    ``ask_again`` pauses until people have decided it again; None for a call that the
    policy decided: its agent never waits for people. ``recheck`` reads the business
    state that must be as people approved it.
    """

    ref: TurnRef
    verdict: Verdict
    args: JsonObject
    ask_again: Callable[[], Answer] | None = None
    recheck: Recheck | None = None


def authorized_args(held: HeldCall, claimed: Claimed | CheckState) -> JsonObject | None:
    """Return the arguments to run when the claim is for exactly this call."""
    try:
        document = digest.action_members(claimed.action)
        args = cast("JsonObject", document["args"])
        edit = claimed.edit
        # The message has the requested arguments, also after an edit.
        base = args if edit is None else edit.requested
        matches = (
            digest.action_hash(claimed.action) == claimed.action_hash
            and (edit is None or edit.executed_hash == claimed.action_hash)
            and (edit is not None or _is_as_requested(held, claimed))
            and document.get("tool") == held.verdict.tool
            and _is_same_turn(document.get("ctx"), held)
            and same(base, held.args)
        )
    except (BadJson, KeyError):
        return None
    return args if matches else None


def _is_as_requested(held: HeldCall, claimed: Claimed | CheckState) -> bool:
    """Return whether this action was requested; its business state may differ."""
    if claimed.action_hash == held.verdict.action_hash:
        return True
    # It went back to people with another business state, which is a part of the hash.
    # Nothing else of the action may have changed.
    return digest.action_hash(claimed.requested) == held.verdict.action_hash and (
        is_same_but_state(claimed.requested, claimed.action)
    )


def _is_same_turn(ctx: object, held: HeldCall) -> bool:
    expected = {**held.ref.names, "tool_call_id": held.verdict.tool_call_id}
    # A subset: the recorded context has fields that the agent does not know.
    return isinstance(ctx, dict) and expected.items() <= ctx.items()
