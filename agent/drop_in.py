"""Drop-in forms of the middleware, for agents that are configured for another library.

`HumanInTheLoopMiddleware` replaces LangChain's. `gated_subagents` adds the approval
middleware to each subagent of a deepagent, including the default one:

    gated = gated_subagents([researcher, payer], agent="billing")
    graph = create_deep_agent(
        model=model, tools=tools, subagents=gated,
        middleware=[ApprovalMiddleware("billing")],
    )

deepagents does not pass the parent's middleware to subagents. It also adds a subagent
``general-purpose`` with all tools of the parent, unless one of that name is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, cast

from keyturn.agent.hints import DESCRIPTION_PREFIX, InterruptOn
from keyturn.agent.middleware import ApprovalMiddleware
from keyturn.gateway.arguments import is_a, require
from keyturn.gateway.client.http_gateway import given_gateway
from keyturn.gateway.errors import GraphError
from keyturn.gateway.gates.reachable import reachable
from keyturn.gateway.protocol.http_api import Gateway

InterruptMode = Literal["batched", "per_call"]
_GENERAL_PURPOSE = "general-purpose"


class HumanInTheLoopMiddleware(ApprovalMiddleware):
    """Accept the arguments of LangChain's ``HumanInTheLoopMiddleware``.

    The gateway's policy is also evaluated for every call; the stricter of both wins.

    Args:
        interrupt_on: tool name to True, False, or an ``InterruptOnConfig``.
        description_prefix: the text reviewers see for a tool without a description.
        edit_notice: no effect: the model always reads a reviewer's changes.
        interrupt_mode: no effect: every held call is a separate interrupt.
        agent: the agent's name in policy and cards.
        gateway: see `ApprovalMiddleware`.
        api_key: likewise.
        system_note: whether the system prompt lists the tools that need approval.

    Raises:
        ValueError: when a config has no ``allowed_decisions`` or an unknown one.
    """

    def __init__(
        self,
        interrupt_on: InterruptOn,
        *,
        description_prefix: str = DESCRIPTION_PREFIX,
        edit_notice: str | None = None,
        interrupt_mode: InterruptMode = "batched",
        agent: str = "agent",
        gateway: Gateway | str | None = None,
        api_key: str | None = None,
        system_note: bool = True,
    ) -> None:
        del edit_notice, interrupt_mode
        super().__init__(
            agent,
            gateway=gateway,
            api_key=api_key,
            system_note=system_note,
            interrupt_on=interrupt_on,
            description_prefix=description_prefix,
        )


def gated_subagents(
    subagents: Sequence[Mapping[str, Any]] = (),
    *,
    agent: str = "agent",
    gateway: Gateway | str | None = None,
    api_key: str | None = None,
    receipt_keys: Iterable[str] = (),
    general_purpose: bool = True,
) -> list[Any]:
    """Return subagents for ``create_deep_agent`` whose calls are all gated.

    Each declared subagent gets an `ApprovalMiddleware` as its last middleware, unless
    it has one. The subagent's ``interrupt_on`` moves to that middleware, because
    LangChain would otherwise pause each call a second time.

    Args:
        subagents: as ``create_deep_agent`` accepts them.
        agent: the agent's name for these subagents' calls, in policy and cards.
        gateway: see `ApprovalMiddleware`.
        api_key: likewise.
        receipt_keys: likewise.
        general_purpose: whether to list the subagent that deepagents would add itself.
            Pass False only if a profile switches it off. To give it skills or another
            prompt, list a subagent of that name.

    Raises:
        GraphError: when a compiled subagent can start ungated tools: a compiled graph
            cannot be changed.
    """
    require(
        is_a(subagents, Sequence) and all(is_a(spec, Mapping) for spec in subagents),
        "subagents",
        subagents,
        "give a list of them, as create_deep_agent takes it",
    )
    found = given_gateway(gateway, api_key, receipt_keys)
    listed = [_gated(spec, agent, found) for spec in subagents]
    names = {str(spec.get("name")) for spec in subagents}
    # Listed here, because deepagents would add one of this name without a gate.
    if general_purpose and _GENERAL_PURPOSE not in names:
        deepagents = import_module("deepagents.middleware.subagents")
        spec = cast("Mapping[str, Any]", deepagents.GENERAL_PURPOSE_SUBAGENT)
        listed.insert(0, _gated(spec, agent, found))
    return listed


def _gated(
    spec: Mapping[str, Any], agent: str, gateway: Gateway | None
) -> Mapping[str, Any]:
    if "graph_id" in spec:
        # It runs elsewhere; the parent's tools start it, and they are gated there.
        return spec
    if "runnable" in spec:
        _check_compiled(spec)
        return spec
    middleware: list[Any] = list(spec.get("middleware", ()))
    if any(isinstance(one, ApprovalMiddleware) for one in middleware):
        return spec
    gate = ApprovalMiddleware(
        agent, gateway=gateway, interrupt_on=spec.get("interrupt_on")
    )
    # Empty, not removed: otherwise deepagents would pass down the parent's.
    return {**spec, "middleware": [*middleware, gate], "interrupt_on": {}}


def _check_compiled(spec: Mapping[str, Any]) -> None:
    found = reachable(spec["runnable"])
    names = sorted({repr(tool.name) for tool in found.tools if tool.is_ungated})
    if names:
        raise GraphError(
            f"The compiled subagent {spec.get('name')!r} can start tools that no gate "
            f"clears: {', '.join(names)}. Give it ApprovalMiddleware as the last of "
            "its middleware before it is compiled."
        )
