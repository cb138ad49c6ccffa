"""The support agent of the weekend policy: it makes the calls of the message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.tools import tool
from langgraph.pregel import Pregel

from keyturn.agent import ApprovalMiddleware, guarded
from tests.resume.sample_tools import obedient


@guarded
@tool
def process_refund(customer_id: str, amount: float) -> str:
    """Give money back."""
    return f"refunded {amount:g} to {customer_id}"


@guarded
@tool
def change_address(order_id: str, order_status: str, address: str) -> str:
    """Send an order elsewhere."""
    return f"{order_id}, {order_status}, goes to {address}"


TOOLS = [process_refund, change_address]

graph = cast("Callable[..., Pregel[Any, Any, Any, Any]]", create_agent)(
    obedient(), tools=TOOLS, middleware=[ApprovalMiddleware("support")]
)
