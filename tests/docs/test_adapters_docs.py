"""docs/adapters.md names each answer to a claim, and its code hands a call over."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.http_api import OPERATIONS
from keyturn.gateway.protocol.records import ItemState, NotTaken
from keyturn.gateway.protocol.wire import ClaimReply, HandedOver
from tests.api.api_stack import serving
from tests.service.harness import ServiceHarness

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")
NAMED = frozenset(re.findall(r"`([a-z_.]+)`", PAGE))


def test_its_table_has_each_answer_to_a_claim_once() -> None:
    replies = get_args(get_args(ClaimReply)[0])
    kinds = [one.model_fields["kind"].default for one in replies]
    rows = re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE)

    assert sorted(set(rows) - {"handed_to", "kind"}) == sorted(kinds)
    assert len(rows) == len(set(rows))


def test_it_names_each_problem_event_and_operation() -> None:
    operations = {"finish", "hand_over", "release", "heartbeat", "withdraw"}
    operations |= {"report_outcome", "report_asked_again", "answers"}

    assert {*get_args(NotTaken)} - {""} <= NAMED
    assert operations <= NAMED & {one.name for one in OPERATIONS}
    assert EventName.ITEM_WANTED_AGAIN in NAMED


@pytest.mark.parametrize("problem", get_args(NotTaken))
async def test_its_code_hands_a_call_over_once(
    harness: ServiceHarness, problem: NotTaken
) -> None:
    names: dict[str, Any] = {}
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/adapters.md", "exec"), names)  # noqa: S102 - the page's
    delivered: list[str] = []

    async def deliver(action: str, *, mark: str) -> str:
        assert '"amount":5' in action
        delivered.append(mark)
        return problem

    ref, (verdict,) = await harness.submit(
        ("process_refund", {"amount": 5}), handed_to="Claude Code"
    )
    await harness.decide(verdict, Approve())
    async with serving(harness) as stack, stack.gateway() as gateway:
        replies = [
            await names["hand_over"](gateway, verdict, ref, deliver) for _ in range(2)
        ]

    state = (await harness.item(verdict.item_id)).state
    assert state is (ItemState.NOT_TAKEN if problem else ItemState.HANDED_OVER)
    assert delivered == [f"{verdict.item_id} 1"]
    assert replies[1] == HandedOver(taken=not problem, problem=problem)
