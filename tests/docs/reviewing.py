"""Run the programs of the docs, and approve their calls as a reviewer would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Decided,
    Decision,
    Reviewer,
)
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.store import Store
from tests.conftest import eventually

HEAD = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: [U0ANA]}
"""
"""The start of a policy in which Ana decides."""

ANA = Reviewer(team="T0", user="U0ANA", name="Ana", account=AccountKind.MEMBER)


def run(code: str, **names: Any) -> dict[str, Any]:
    """Run the code of a page; return the names that it leaves."""
    names |= {"__name__": "page"}
    exec(compile(code, "page", "exec"), names)  # noqa: S102 - the page's own code
    return names


@asynccontextmanager
async def embedded(
    store: Store, folder: Path, rules: str = HEAD
) -> AsyncGenerator[Keyturn]:
    """Run a whole gateway by this policy on the store."""
    policy = load_policy(rules, "policy.yml")
    async with Keyturn(policy=policy, url=store.conn.url, data_dir=folder) as found:
        yield found


async def approve_all(
    tk: Keyturn, home: RunRef, decision: Decision | None = None
) -> None:
    """Wait for the first calls of a run, and approve them, or respond."""
    keys = tk.store.keys_of_tenant("default")
    decided: list[object] = []

    async def approved() -> bool:
        for one in await tk.store.approvals.of_run(keys, home):
            loaded = await tk.reviews.read(one.id)
            assert loaded
            for item in loaded.approval.items:
                if item.is_pending:
                    click = Click(
                        approval=one.id,
                        index=item.index,
                        version=loaded.approval.version,
                        action_hash=item.action_hash,
                    )
                    said = decision or Approve()
                    decided.append(await tk.reviews.decide(click, said, ANA))
        return bool(decided)

    await eventually(approved)
    assert all(isinstance(one, Decided) for one in decided)


async def approved_run(
    tk: Keyturn, graph: Any, ask: Any, *, agent: str, decision: Decision | None = None
) -> Any:
    """Run a graph whose first calls are approved, or answered; return its end."""
    running = asyncio.create_task(tk.run(graph, ask, thread_id="t", agent=agent))
    await approve_all(tk, RunRef(agent=agent, thread="t"), decision)
    return await running
