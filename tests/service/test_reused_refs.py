"""A turn's name is valid for its calls only; other calls under it are refused."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from keyturn.gateway.errors import NotAllowed, RefReused
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from tests.service.harness import ServiceHarness

REF = TurnRef(agent="support", thread="t1", message_id="m1")


def call(tool: str, call_id: str = "c0", amount: JsonValue = 10) -> ProposedCall:
    return ProposedCall(tool=tool, args={"amount": amount}, tool_call_id=call_id)


TOOLS = ["process_refund", "look_up_order", "drop_table", "wire_money"]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("call_id", "amount", "renamed", "kept"),
    [
        pytest.param("c1", 10, "", 0, id="another id"),
        pytest.param("c0", 999, "", 0, id="other arguments"),
        pytest.param("c0", 10.5, "", 0, id="a fraction more"),
        pytest.param("c0", 10, "send_email", 0, id="another tool"),
        pytest.param("c1", 10, "", 1, id="a call more"),
        pytest.param("c0", 999, "", 1, id="the same id twice"),
    ],
)
async def test_other_calls_are_refused(
    harness: ServiceHarness,
    tool: str,
    call_id: str,
    amount: float,
    renamed: str,
    kept: int,
) -> None:
    first = call(tool)
    before = await harness.agents.submit(Turn(ref=REF, calls=(first,)))
    other = call(renamed or tool, call_id, amount)
    calls = (*[first] * kept, other)

    with pytest.raises(RefReused, match=rf"'{call_id}'.*does not run") as caught:
        await harness.agents.submit(Turn(ref=REF, calls=calls))

    assert "999" not in str(caught.value)
    assert await harness.agents.submit(Turn(ref=REF, calls=(first,))) == before


@pytest.mark.parametrize("tool", TOOLS)
async def test_the_same_calls_are_answered_in_any_spelling_order_and_part(
    harness: ServiceHarness, tool: str
) -> None:
    calls = (call(tool, "c0", 10), call(tool, "c1", 20), call(tool, "c2", 30))
    before = await harness.agents.submit(Turn(ref=REF, calls=calls))

    again = await harness.agents.submit(
        Turn(ref=REF, calls=(call(tool, "c2", 30.0), calls[0]))
    )

    assert again == (before[2], before[0])


async def test_a_call_that_is_not_json_is_answered_again(
    harness: ServiceHarness,
) -> None:
    turn = Turn(ref=REF, calls=(call("process_refund", amount=float("nan")),))
    try:
        before = await harness.agents.submit(turn)
    except NotAllowed:
        return  # over HTTP such a turn cannot be sent

    assert await harness.agents.submit(turn) == before
