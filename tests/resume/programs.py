"""Programs with a gateway in their process, and people's actions there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, cast

from langchain_core.tools import tool

from keyturn.gateway.approvals.decisions import Approve, Click, Decision, Outcome
from keyturn.gateway.approvals.record import Item, approval_of
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Recovery
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, RULES

AT: Any = {"thread_id": "t1", "agent": "shop"}
"""The thread that most tests run."""

Open = Callable[..., AbstractAsyncContextManager[Keyturn]]
"""Opens a program, again and again on the same data; takes options of it."""


@tool
def pay(order: str) -> str:
    """Pay."""
    sample_tools.note(f"paid {order}")
    return f"paid {order}"


def saying(text: str) -> dict[str, Any]:
    """Return an input of one message."""
    return {"messages": [{"role": "user", "content": text}]}


def calling_tools(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return an input that makes the shop's agent make these calls."""
    return saying(json.dumps(calls))


def refund(amount: float = 899.0) -> dict[str, Any]:
    """Return an input that makes the agent ask for a refund."""
    return calling_tools(("refund", {"order": "78291", "amount": amount}))


def words(state: dict[str, Any]) -> str:
    """Return the agent's last message."""
    return str(state["messages"][-1].text)


async def items_of(tk: Keyturn, thread: str = "t1") -> list[Item]:
    """Return a thread's items."""
    keys = tk.store.keys_of_tenant("default")
    run_ref = RunRef(agent="shop", thread=thread)
    listed = await tk.store.approvals.of_run(keys, run_ref)
    found = await tk.store.approvals.load_each(one.id for one in listed)
    return [item for one in found for item in one.approval.items]


async def asked(tk: Keyturn, thread: str = "t1") -> Item:
    """Wait for the one pending item of a thread, and until the thread rests."""
    found: list[Item] = []

    async def is_so() -> bool:
        keys = tk.store.keys_of_tenant("default")
        if await tk.store.conn.command("EXISTS", keys.lease("shop", thread)):
            return False
        found[:] = [item for item in await items_of(tk, thread) if item.is_pending]
        return len(found) == 1

    await eventually(is_so)
    return found[0]


async def decide(tk: Keyturn, item: Item, decision: Decision | None = None) -> Outcome:
    """Decide an item as it was opened; approve it by default."""
    click = Click(
        approval=approval_of(item.id)[0],
        index=item.index,
        version=1,
        action_hash=item.action_hash,
    )
    return await tk.reviews.decide(click, decision or Approve(), ANA)


async def idle(tk: Keyturn) -> None:
    """Wait until no job is left."""
    queue = tk.store.queue(tk.store.keys_of_tenant("default"))

    async def is_so() -> bool:
        return await queue.depth() == 0

    await eventually(is_so)


def begin(
    tk: Keyturn, graph: object, given: object, thread: str = "t1", **options: Any
) -> asyncio.Task[dict[str, Any]]:
    """Run a thread of the shop's agent in a task."""
    run = tk.run(graph, given, thread_id=thread, agent="shop", **options)
    return asyncio.create_task(run)


async def recovered_elsewhere(tk: Keyturn, graph: object) -> None:
    """Look for lost threads as a worker of another process with this graph does."""
    runner = await tk._runner(graph, "shop")  # pyright: ignore[reportPrivateUsage] - to be that worker
    runners = Runners({"shop": runner}, cast("Any", tk)._saver)
    await Recovery(tk.store, runners).recover(is_only_process=False)


def in_process(store: Store, folder: Path, **options: Any) -> Keyturn:
    """Return a program on a store, with its checkpoints in a folder."""
    place = {"url": store.conn.url, "data_dir": folder}
    given: dict[str, Any] = {"policy": RULES, **place, **options}
    return Keyturn(**given)
