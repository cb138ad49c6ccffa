"""Nested agents: resolve the run and the conversation of an agent.

People talk to the outermost agent, and a worker resumes that one. A call that waits
inside its tools therefore belongs to its thread, which determines the requester, the
resume and the expiry.

Agents of one run that are nodes of one graph share a conversation. An agent inside a
tool has a separate conversation, which begins at the namespace of that tool's task.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langgraph._internal._constants import CONFIG_KEY_CHECKPOINTER
from langgraph.config import get_config

from keyturn.gateway.errors import GraphError
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.records import EditRecord, RunRef, is_inside
from keyturn.gateway.protocol.run_context import Inside, current_run
from keyturn.gateway.protocol.wire import TurnRef

_conversation: ContextVar[str] = ContextVar("keyturn_conversation", default="")


def kept_thread(configurable: Mapping[str, Any], ns: str) -> str:
    """Return the id of the thread that a graph runs in; "" if it is not persistent.

    Without a checkpointer, an approved call could not continue.

    Args:
        configurable: the configuration of the running node.
        ns: namespace of its agent; "" for an outermost one.
    """
    thread_id = configurable.get("thread_id")
    # A nested graph resumes with the outer one, with or without a checkpointer.
    is_kept = ns or configurable.get(CONFIG_KEY_CHECKPOINTER, "") is not None
    return "" if thread_id is None or not is_kept else str(thread_id)


def check_name(agent: str, thread: str, ns: str) -> None:
    """Refuse an outermost agent whose name differs from that of its run.

    Its approvals would belong to another run, which no worker resumes.

    Raises:
        GraphError: contains both names; no request was made.
    """
    run_ref = current_run()
    if run_ref is None or ns or run_ref.thread != thread or run_ref.agent == agent:
        return
    raise GraphError(
        f"The graph of the agent {run_ref.agent!r} calls itself {agent!r}; write "
        f"ApprovalMiddleware({run_ref.agent!r}) or require_approval(…, "
        f"agent={run_ref.agent!r}), or run it as agent={agent!r}. No approval was "
        "requested."
    )


def nested_in(agent: str, thread: str, ns: str) -> RunRef | None:
    """Return the run around an agent; None for the agent of the thread itself.

    LangGraph gives a namespace to every graph that runs inside another one. An agent
    without a namespace is outermost, even if its context was copied from another run.
    """
    run_ref = current_run()
    if run_ref is None or not ns:
        return None
    # The agent of the run may itself be a subgraph; it is not nested in itself.
    is_own = run_ref == RunRef(agent=agent, thread=thread)
    return None if is_own else run_ref


def own_conversation() -> Inside[str]:
    """Give the agents inside this block, in this task, a separate conversation."""
    ns = str(get_config().get("configurable", {}).get("checkpoint_ns", ""))
    return Inside(_conversation, ns)


def enclosing_task() -> str:
    """Return the namespace of the task whose tool this code runs in; "" if none."""
    return _conversation.get()


def is_inside_tool(ref: TurnRef) -> bool:
    """Return True if an agent runs inside a tool of another agent, or of itself.

    A subagent may have the name and the thread of the enclosing agent; then only the
    conversation differs.
    """
    return ref.nested_in is not None or bool(conversation_of(ref.ns))


def conversation_of(ns: str) -> str:
    """Return the namespace in which the conversation of an agent at ``ns`` began.

    It is "" outside of tools: there the conversation is that of the whole run.
    """
    outer = _conversation.get()
    # With the separator, because "a:1" is not a parent of "a:12".
    if not outer or not f"{ns}|".startswith(f"{outer}|"):
        return ""
    # A second graph in the same task has a separate conversation.
    return outer if ns == outer or is_inside(ns, outer) else ns


# Collect edits to calls of nested agents, and report them to the outer agent.
#
# A nested agent reports edits when it finds them: before each model call the edits in
# its state, and after a call that call's edit. An outer tool that resumes after a pause
# starts from the beginning without the earlier reports, and the nested agent may end
# without another model call. The edits in the state are therefore also reported before
# each call.

_inside: ContextVar[list[EditRecord] | None] = ContextVar(
    "keyturn_inside", default=None
)


@contextmanager
def collect_edits(run_ref: RunRef) -> Generator[list[EditRecord]]:
    """Collect the edits of this run that agents inside the running tool report."""
    found: list[EditRecord] = []
    with Inside(_inside, found), run_context.in_run(run_ref), own_conversation():
        yield found


def is_nested() -> bool:
    """Return True if this agent runs inside a tool of another gated agent."""
    return _inside.get() is not None


def report_edits(records: Sequence[EditRecord]) -> None:
    """Report edits to the outer agent, if there is one."""
    found = _inside.get()
    if found is not None:
        # LangGraph reruns the node after a pause, and the agent then reports again.
        found.extend(record for record in records if record not in found)
