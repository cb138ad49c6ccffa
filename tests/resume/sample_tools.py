"""An agent of a shop for the tests, with a scripted model.

A person's message is a JSON list of calls. The model makes them all at once and then
repeats their results. The tools write their effects to a ledger file, one line each.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.pregel import Pregel
from typing_extensions import override

from keyturn.agent import ApprovalMiddleware, grant, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling

LEDGER = "SHOP_LEDGER"
is_broken = True
is_bank_down = False


class Obedient(ScriptedModel):
    """A model that makes the calls of the last message, then repeats the results.

    ``wait`` delays every answer.
    """

    wait: Callable[[], Awaitable[object]] | None = None

    @override
    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        if self.wait is not None:
            await self.wait()
        return self._generate(messages)


def obedient(wait: Callable[[], Awaitable[object]] | None = None) -> Obedient:
    """Return a scripted model, perhaps with a delay."""
    # Looked up at each reply, so that a test can listen in or break it.
    return Obedient(reply=lambda messages: answer(messages), wait=wait)  # noqa: PLW0108 - see above


def answer(messages: list[BaseMessage]) -> AIMessage:
    """Make the calls of the last message, or repeat their results."""
    results: list[str] = []
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        if isinstance(message, ToolMessage):
            results.append(str(message.text))
    if results:
        return AIMessage(after_tools(results[::-1]))
    last = str(messages[-1].text)
    if last == "break" and is_broken:
        raise RuntimeError("the model is down")
    if not last.startswith("["):
        return AIMessage(f"You said {last}")
    calls = [
        (name, args, f"c{len(messages)}-{index}")
        for index, (name, args) in enumerate(json.loads(last))
    ]
    return calling(*calls)


def after_tools(results: list[str]) -> str:
    """Return the results of all calls of the turn as one text."""
    return " | ".join(results)


def note(line: str) -> None:
    """Write one line to the ledger, in one append."""
    with Path(os.environ[LEDGER]).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def ledger() -> list[str]:
    """Return what happened so far."""
    path = Path(os.environ[LEDGER])
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@tool
def refund(order: str, amount: float) -> str:
    """Give money back."""
    note(f"refund {order} {amount:g} {grant().idempotency_key[-12:]}")
    return f"refunded {order} {amount:g}"


@tool
def email(to: str) -> str:
    """Send a message; the mail system recognizes a key that it has seen."""
    note(f"email {to} {grant().idempotency_key[-12:]}")
    return f"mailed {to}"


@tool
def charge(order: str) -> str:
    """Charge an order; the bank may be down."""
    note(f"charge {order} {grant().idempotency_key[-12:]}")
    if is_bank_down:
        raise RuntimeError("the bank is down")
    return f"charged {order}"


@tool
def slow(order: str, seconds: float) -> str:
    """Take a while."""
    note(f"begin {order}")
    time.sleep(seconds)
    note(f"end {order}")
    return f"slow {order}"


@tool
def look_up(order: str) -> str:
    """Look up an order."""
    note(f"look_up {order}")
    return f"found {order}"


def graph(
    *more: BaseTool, wait: Callable[[], Awaitable[object]] | None = None
) -> Pregel[Any, Any, Any, Any]:
    """Make the agent, perhaps with more tools, or a model that waits."""
    make = cast("Callable[..., Pregel[Any, Any, Any, Any]]", create_agent)
    return make(
        obedient(wait),
        tools=[
            guarded(refund),
            guarded(email),
            guarded(slow),
            guarded(charge),
            look_up,
            *more,
        ],
        middleware=[ApprovalMiddleware("shop")],
    )
