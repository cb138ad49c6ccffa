"""The mix-in makes the same commands as ever: old histories can be replayed.

``KEYTURN_RECORD_HISTORIES=yes pytest --deep tests/connect/temporal/test_histories.py``
records them anew. Do that only for a workflow that is new: a change of the commands of
the others has to be behind `workflow.patched`, or workflows that wait for people would
fail after an update.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from keyturn.connect.gate import HttpGate
from keyturn.connect.temporal.plugin import KeyturnPlugin
from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from tests.connect.temporal.conftest import Handle, World
from tests.connect.temporal.flows import CURRENT, TOOL, Eager, Refund, Refunds, Renewed
from tests.connect.temporal.test_attempts import cancelled, continued
from tests.levels import size

FOLDER = Path(__file__).parent / "histories"
HISTORIES = {one.stem: one.read_text("utf-8") for one in FOLDER.glob("*.json")}


def replayer() -> Replayer:
    gate = HttpGate("http://127.0.0.1:1", f"tk_{'0' * 16}_{'0' * 64}")
    return Replayer(workflows=CURRENT, plugins=[KeyturnPlugin(gateway=gate)])


@pytest.mark.parametrize("name", sorted(HISTORIES))
async def test_a_recorded_history_replays(name: str) -> None:
    history = WorkflowHistory.from_json(name, HISTORIES[name])

    await replayer().replay_workflow(history)


def test_histories_are_recorded() -> None:
    names = ["approved", "cancelled", "continued", "polled", "renewed", "together"]
    assert sorted(HISTORIES) == names


@pytest.mark.usefixtures("only_dev")
async def test_a_history_replays_without_the_plugin(world: World) -> None:
    histories = await _played(world)

    for name, history in histories.items():
        await Replayer(workflows=CURRENT).replay_workflow(history)
        if os.environ.get("KEYTURN_RECORD_HISTORIES"):
            FOLDER.mkdir(exist_ok=True)
            text = json.dumps(json.loads(history.to_json()), separators=(",", ":"))
            (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


async def _played(world: World) -> dict[str, WorkflowHistory]:
    """Play workflows that take each way through the mix-in; return their histories."""
    found = dict[str, WorkflowHistory]()

    async def keep(name: str, handle: Handle) -> None:
        found[name] = await handle.fetch_history()

    async with world.worker():
        approved = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.decide(approved, Approve())
        await approved.result()
        await keep("approved", approved)

        together = await world.start(Refunds.run, [1, 2, 3])
        first, second, third = await world.waiting(together, 3)
        await world.people.decide(second.item_id, Edit(args={"amount": 20}))
        await world.people.decide(first.item_id, Reject())
        await world.people.decide(third.item_id, Approve())
        await together.result()
        await keep("together", together)

        ended = await world.start(Refund.run, TOOL, {"amount": 7})
        await world.waiting(ended)
        await ended.cancel()
        await cancelled(ended)
        await keep("cancelled", ended)

        renewed = await world.start(Renewed.run, [1, 2])
        run_id = (await renewed.describe()).run_id
        held = await world.waiting(renewed, 2)
        await renewed.signal("again")
        await continued(renewed, run_id)
        latest = world.client.get_workflow_handle(renewed.id)
        await world.waiting(latest, 2)
        for one in held:
            await world.people.decide(one.item_id, Approve())
        await latest.result()
        before = world.client.get_workflow_handle(renewed.id, run_id=run_id)
        await keep("renewed", before)
        await keep("continued", latest)

    async with world.worker(wakes=False):
        polled = await world.start(Eager.run, 7)
        await world.decide(polled, Approve())
        await polled.result()
        await keep("polled", polled)
    return found


@pytest.mark.usefixtures("only_skipping")
async def test_people_may_take_two_days(world: World) -> None:
    hours = size(deep=48, short=6)
    async with world.worker(wakes=False):
        handle = await world.start(Refund.run, TOOL, {"amount": 7})
        [held] = await world.waiting(handle)
        await world.env.sleep(timedelta(hours=hours))
        await world.people.decide(held.item_id, Approve())
        outcome = await handle.result()

    assert (world.paid, outcome.kind) == ([7], "ran")
    # The poll of every ten minutes, and nothing else.
    assert 0 <= await world.events(handle, "TIMER_FIRED") - 6 * hours < 12
    assert len((await world.people.approval(held.item_id)).items) == 1
