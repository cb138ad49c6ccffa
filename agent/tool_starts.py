"""Block a nested tool's start unless an approval gate granted it.

Theory of operation. A middleware gates only the agent that it was given to. An agent
inside a tool, such as the general-purpose subagent that deepagents adds by itself, has
tools of its own and no gate. While a gated agent runs a tool or asks its model, a
LangChain callback handler is inherited by everything that runs below: LangChain asks
each callback manager for it (``register_configure_hook``), also in tasks and in threads
that copy the context, and child runs inherit it from their parents' configuration.
LangChain tells the handler of a tool before the tool runs, and what it raises is raised
instead of running the tool.

A start is cleared by the grant that a gate has put around exactly this call: same tool,
same arguments, first start. Nothing else clears one, not even a tier ``auto`` of the
policy: what the policy auto-approves is evaluated, counted and audited at a gate, call
    by
call. A tool that is started by the code of another tool has no grant either; a tool
that has to run so is named as an exception.

What starts no LangChain tool is not seen: a plain function, or the wrapped function of
a tool. Neither is a start in a thread that copies neither context nor configuration;
`guarded` tools refuse to run there.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from functools import lru_cache
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from keyturn.agent import grants
from keyturn.gateway.context_values import Inside
from keyturn.gateway.errors import UngatedTool
from keyturn.gateway.protocol.run_context import excepted

logger = logging.getLogger(__name__)


class StartCheck(BaseCallbackHandler):
    """Refuse tool starts without a grant.

    Args:
        agent: the outermost gated agent, for the refusal's text.
        excepted: names of the tools that may start without a grant.
    """

    # Without it LangChain only logs the exception of a handler, and runs the tool.
    raise_error = True
    run_inline = True
    """An asynchronous manager otherwise calls this in a thread, after the fact."""

    def __init__(self, agent: str, excepted: frozenset[str]) -> None:
        self._agent = agent
        self._excepted = excepted

    @property
    def ignore_chat_model(self) -> bool:
        """Return True: LangChain then builds no string of every message."""
        return True

    @property
    def ignore_llm(self) -> bool:
        """Return True: only starts of tools are looked at."""
        return True

    @property
    def ignore_chain(self) -> bool:
        """Return True, as above."""
        return True

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,  # noqa: ARG002 - LangChain's signature
        *,
        run_id: UUID,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401 - LangChain's signature
    ) -> None:
        """Refuse a start that no gate has cleared.

        Raises:
            UngatedTool: instead of the tool's run.
        """
        tool = str((serialized or {}).get("name") or kwargs.get("name") or "")
        # A tool without a name matches no grant and is refused.
        if tool in self._excepted or grants.is_granted_start(tool, inputs, run_id):
            return
        logger.warning("tool.ungated agent=%s tool=%s", self._agent, tool)
        raise UngatedTool(self._agent, tool)


_check: ContextVar[StartCheck | None] = ContextVar("keyturn_tool_starts", default=None)
register_configure_hook(_check, inheritable=True)


def checked(agent: str) -> Inside[StartCheck | None]:
    """Check every tool start below this block; the outermost agent's check is kept."""
    return Inside(_check, _check.get() or _check_of(agent, excepted()))


@lru_cache(maxsize=64)
def _check_of(agent: str, names: frozenset[str]) -> StartCheck:
    # One for all: it keeps nothing of the starts that it sees.
    return StartCheck(agent, names)
