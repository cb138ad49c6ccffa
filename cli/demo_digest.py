"""Script of the demo for the weekly digest: decide some calls, and read the numbers."""

from __future__ import annotations

import json
from zoneinfo import ZoneInfo

from twokey.bot.delivery.metrics_reports import MetricsReports
from twokey.bot.ids import Action, Input
from twokey.cli.demo_context import STEP_TIMEOUT_S, DemoContext, expect
from twokey.cli.demo_stack import CHANNEL, DemoStack
from twokey.gateway.metrics.fold import Selection
from twokey.gateway.metrics_settings import MetricsSettings
from twokey.gateway.protocol.states import ItemState
from twokey.sandbox.json_types import JsonObject, as_objects

_REASON = "It has left already."
_WEEK_MS = 7 * 86_400_000


async def digest(context: DemoContext) -> None:
    """Ana approves one refund and rejects another; the channel gets the numbers."""
    ts, approved = await context.ask()
    await context.click(ts, Action.APPROVE, approved, 0)
    await context.reached(approved, {0: ItemState.EXECUTED})
    await context.final_message()
    ts, rejected = await context.ask("@twokey change the address of order 78304")
    await context.click(ts, Action.REJECT, rejected, 0)
    await context.submit({Input.REASON: _REASON}, rejected, 0)
    await context.reached(rejected, {0: ItemState.REJECTED})
    await context.final_message()

    shown = await _announced(context, rejected.tenant)
    text = str(shown["text"])
    blocks = as_objects(shown["blocks"])
    chart = next((one for one in blocks if one["type"] == "data_visualization"), None)
    context.say("digest.posted", text=text, chart=chart)
    # Of a week that has ended it would be the same message, by the same code.
    expect("1 of 2 decisions: 0 edited, 1 rejected" in text, "The numbers are wrong.")
    expect(chart is not None, "There is no chart of the days.")
    expect("Calls of each day" in text, "The text does not tell what the chart shows.")
    expect("change_address" in json.dumps(blocks), "The table has no row of a tool.")


async def announce_digest(demo: DemoStack, tenant: str) -> bool:
    """Announce the numbers of the last seven days; return whether there are any."""
    service = demo.stack.twokey.reviews
    settings = MetricsSettings(channel=CHANNEL)
    reports = MetricsReports(service, settings, tenant=tenant, reader="demo")
    now_ms = await service.store.conn.now_ms(
        service.store.keys_of_tenant(tenant).outbox
    )
    week = Selection(since_ms=now_ms - _WEEK_MS, until_ms=now_ms + 1)
    # Each start of the demo may post one.
    return await reports.announce_digest(week, ZoneInfo("UTC"), f"demo {now_ms}")


async def _announced(context: DemoContext, tenant: str) -> JsonObject:
    """Announce the digest; wait until it is posted."""
    expect(await announce_digest(context.demo, tenant), "Nothing to tell.")

    def is_it(message: JsonObject) -> bool:
        return str(message["text"]).startswith("The week's numbers")

    return await context.ana.message_with(CHANNEL, is_it, STEP_TIMEOUT_S)
