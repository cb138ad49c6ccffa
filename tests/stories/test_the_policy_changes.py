"""The policy changes while everything runs: the deciders, and the need for them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from keyturn.bot.ids import Action
from keyturn.cli.demo_context import DemoContext
from keyturn.cli.demo_stack import DemoStack, open_demo_stack
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import ItemState
from tests.conftest import eventually
from tests.streams import audit_entries

AGENT = Path(__file__).parents[2] / "examples" / "support_agent.py"
CHLOE_ONLY: Mapping[str, object] = {
    "version": 1,
    "defaults": {"channel": "C0APPROVALS", "needs": "U0CHLOE"},
    "tools": {"look_up_order": {"tier": "auto"}},
}
THE_GROUP_TOO: Mapping[str, object] = {
    **CHLOE_ONLY,
    "defaults": {"channel": "C0APPROVALS", "needs": ["U0CHLOE", "floor"]},
    "roles": {"floor": {"usergroups": ["S0SUPPORT"]}},
}
NO_REFUNDS: Mapping[str, object] = {
    **THE_GROUP_TOO,
    "tools": {"look_up_order": {"tier": "auto"}, "process_refund": {"tier": "deny"}},
}


def write(config: Path, policy: Mapping[str, object]) -> None:
    """Write the settings with a policy inside, as an editor would."""
    agents = {"support": {"graph": f"{AGENT}:graph"}}
    config.write_text(json.dumps({"agents": agents, "policy": policy}), "utf-8")


@asynccontextmanager
async def opened(config: Path, ledger: Path) -> AsyncGenerator[DemoContext]:
    """Start everything, with the agent in the gateway."""
    data, away = config.with_name("data"), ledger.with_name("away")
    async with open_demo_stack(config, data, is_kept=False) as demo:
        yield DemoContext(demo, silent, ledger, away)


def silent(event: str, **fields: object) -> None:
    """Print no step."""


async def changes(demo: DemoStack, name: EventName) -> int:
    """Count the changes of the policy that the audit log has."""
    store = demo.stack.keyturn.store
    entries = await audit_entries(store.conn, store.keys_of_tenant("default"))
    return sum(event.name is name for event in entries)


async def heard(demo: DemoStack, name: EventName, count: int) -> None:
    """Wait until the policy was loaded, or refused, so many times."""

    async def is_heard() -> bool:
        return await changes(demo, name) == count

    await eventually(is_heard)


async def is_told_no(context: DemoContext) -> bool:
    """Return whether Ana was informed that she may not decide this."""
    return bool(await context.ana.ephemerals("C0APPROVALS"))


@pytest.mark.slow
async def test_a_new_role_decides_and_a_new_rule_refuses_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, ledger = tmp_path / "keyturn.yml", tmp_path / "effects.jsonl"
    monkeypatch.setenv("KEYTURN_DEMO_LEDGER", str(ledger))
    write(config, CHLOE_ONLY)
    async with opened(config, ledger) as context:
        demo = context.demo
        ts, approval = await context.ask()
        await context.click(ts, Action.APPROVE, approval, 0)
        await eventually(lambda: is_told_no(context))
        assert (await context.approval(approval.id)).items[0].is_pending

        write(config, THE_GROUP_TOO)
        await heard(demo, EventName.POLICY_LOADED, 2)
        ts, approval = await context.ask()
        await context.click(ts, Action.APPROVE, approval, 0)
        await context.reached(approval, {0: ItemState.EXECUTED})

        config.write_text("", "utf-8")
        await heard(demo, EventName.POLICY_REFUSED, 1)
        ts, approval = await context.ask()
        await context.click(ts, Action.APPROVE, approval, 0)
        await context.reached(approval, {0: ItemState.EXECUTED})

        write(config, NO_REFUNDS)
        await heard(demo, EventName.POLICY_LOADED, 3)
        await context.dan.say("C0APPROVALS", "@keyturn refund order 78291")
        store = demo.stack.keyturn.store

        async def is_denied() -> bool:
            keys = store.keys_of_tenant("default")
            entries = await audit_entries(store.conn, keys)
            names = [event.name for event in entries]
            is_over = names[-1] is EventName.RUN_FINISHED
            return is_over and EventName.CALL_DENIED in names

        await eventually(is_denied)
        assert len(context.effects()) == 2
