"""Submit the call of a plain LangGraph node as a turn, identified by its position."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from langgraph.config import get_config

from keyturn.agent import turns
from keyturn.agent.bridge import Shell, ask_while_held
from keyturn.gateway.errors import (
    FINAL_ERRORS,
    KeyRefused,
    KeyturnError,
    NotAllowed,
    ThreadUnavailable,
)
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.wire import Turn, TurnRef, Verdict

# Count how often a node's body has reached a step, to number repeated steps.
#
# LangGraph runs a body again from its start after each pause, and counts its own
# interrupts the same way. A new run, and a retry by the node's retry policy, begin
# again with 1, so that a step has the same number every time its body comes to it.

_SCRATCHPAD = "__pregel_scratchpad"
_RUNTIME = "__pregel_runtime"
"""What LangGraph keeps of a task that runs, and of its present attempt (private)."""

_lock = threading.Lock()
_counts: WeakKeyDictionary[object, tuple[int, int]] = WeakKeyDictionary()


def next_number() -> int:
    """Return how often this attempt of the running task asked, this time included."""
    configurable: dict[str, Any] = get_config().get("configurable", {})
    scratchpad: Any = configurable.get(_SCRATCHPAD)
    # A closure that LangGraph makes per run of the body. The scratchpad itself has
    # slots and takes no weak reference.
    body = getattr(scratchpad, "get_null_resume", None)
    if body is None:
        return 1
    attempt = _attempt(configurable)
    with _lock:
        last, count = _counts.get(body, (attempt, 0))
        count = count + 1 if last == attempt else 1
        _counts[body] = (attempt, count)
    return count


def _attempt(configurable: dict[str, Any]) -> int:
    info: Any = getattr(configurable.get(_RUNTIME), "execution_info", None)
    return int(getattr(info, "node_attempt", 1))


def turn_ref(agent: str, tool: str, key: str) -> TurnRef:
    """Name the turn by its position: node, step number, place among siblings.

    A node that runs again after a pause or a crash is at the same place, and so finds
    its own item again. Its namespace is its own, so that it supersedes nobody else.

    Raises:
        NotAllowed: when the graph keeps no thread.
    """
    here = turns.turn_ref(agent, "?")
    if here is None:
        raise NotAllowed(
            f"The step {tool!r} cannot wait for people without a thread; run the graph "
            "with a checkpointer and a thread_id."
        )
    metadata = get_config().get("metadata", {})
    node = [metadata.get("langgraph_node"), *metadata.get("langgraph_path", ())]
    name = "|".join([here.ns, *(str(part) for part in node)])
    # The first step without a key has no suffix, as when a node had only one step.
    step_id = key or str(next_number())
    name += "" if step_id == "1" else f"#{step_id}"
    number = metadata.get("langgraph_step")
    return here.with_(ns=name, message_id=f"{name}@{number}/{key or tool}")


async def submit(turn: Turn, gateway: Gateway, shell: Shell) -> Verdict:
    """Return the verdict on the one call of a turn.

    Raises:
        ThreadUnavailable: when the gateway does not answer.
        KeyRefused: when it refuses the API key of this process.
    """
    call = turn.calls[0]
    turn = turn.with_(enclosing_run=run_context.enclosing_run(turn.ref.run_ref))
    try:
        found = await ask_while_held(shell, lambda: gateway.submit(turn))
    except KeyRefused:
        raise
    except FINAL_ERRORS as error:
        return turns.denial(call.tool, call.tool_call_id, str(error))
    except KeyturnError as error:
        # Not a denial, as in the middleware: no model reads it here, and the program
        # can run the thread again.
        raise ThreadUnavailable(
            f"The gateway did not answer about {call.tool!r}, so nothing ran; run the "
            "thread again when it is back."
        ) from error
    about = (call.tool, call.tool_call_id, call.args)
    if len(found) == 1 and turns.is_about(found[0], *about):
        return found[0]
    return turns.denial(call.tool, call.tool_call_id, turns.NO_VERDICT)
