"""Values that are not JSON are refused before sending, and never converted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol.records import Result, Verb
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, VerdictKind
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ServiceHarness

REF = TurnRef(agent="support", thread="t1", message_id="m1")


@pytest.fixture
async def stack(store: Store) -> AsyncGenerator[ApiStack]:
    async with serving(ServiceHarness(store)) as found:
        yield found


def turn(args: dict[str, Any], **more: Any) -> Turn:
    call = ProposedCall(tool="process_refund", args=args, tool_call_id="c1")
    return Turn(ref=REF, calls=(call,), **more)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "'/calls/0/args/amount': a number is not finite"),
        (float("-inf"), "'/calls/0/args/amount': a number is not finite"),
        ("\ud800", "'/calls/0/args/amount': a string contains half of a surrogate"),
        (2**63, "'/calls/0/args/amount'"),
    ],
)
async def test_arguments_that_are_no_json_are_refused_and_name_the_place(
    stack: ApiStack, value: object, words: str
) -> None:
    async with stack.gateway() as gateway:
        with pytest.raises(NotAllowed, match=words):
            await gateway.submit(turn({"amount": value}))

    assert await stack.harness.opened() == []


async def test_a_text_that_is_no_unicode_is_refused_in_the_same_words(
    stack: ApiStack,
) -> None:
    asked = turn({"amount": 5}, says="\ud800")

    async with stack.gateway() as gateway:
        for port in (gateway, stack.harness.agents):
            with pytest.raises(
                NotAllowed, match="contains half of a surrogate pair, so"
            ):
                await port.submit(asked)
        with pytest.raises(NotAllowed, match="half of a surrogate"):
            await gateway.finish("ap_1.0", 1, Result(ok=True, summary="\ud800"))


@pytest.mark.parametrize("value", [float("nan"), "\ud800", 2**70])
async def test_a_schema_that_is_no_json_takes_only_edits_away(
    stack: ApiStack, value: object
) -> None:
    asked = turn({"amount": 5}, schemas={"process_refund": {"default": value}})

    async with stack.gateway() as gateway:
        (verdict,) = await gateway.submit(asked)

    assert verdict.kind is VerdictKind.HOLD
    assert Verb.EDIT not in verdict.allow
