"""Stored verdicts of a turn: a damaged value is refused, and never misread."""

from __future__ import annotations

import pytest

from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import CallEnd, TurnRef
from keyturn.gateway.service.submit.submitting import StoredVerdicts
from tests.service.harness import ServiceHarness

CALLS: tuple[tuple[str, JsonObject], ...] = (
    ("look_up_order", {"id": "1"}),
    ("process_refund", {"amount": 1}),
)


def turn_key(ref: TurnRef) -> str:
    return digest.turn_key(tenant="default", **ref.names)


async def stored(harness: ServiceHarness, ref: TurnRef) -> bytes:
    return await harness.store.agent_load.verdicts(harness.keys, turn_key(ref))


async def put(harness: ServiceHarness, ref: TurnRef, body: bytes) -> None:
    await harness.command("SET", harness.keys.turn(turn_key(ref)), body)


async def test_every_damaged_byte_is_refused(harness: ServiceHarness) -> None:
    ref, _ = await harness.submit(*CALLS)
    whole = await stored(harness, ref)

    for at in range(len(whole)):
        for bit in range(8):
            changed = bytes([whole[at] ^ (1 << bit)])
            damaged = whole[:at] + changed + whole[at + 1 :]
            with pytest.raises(CorruptRecord):
                StoredVerdicts.read(harness.store.sealing, "turn", damaged)
        with pytest.raises(CorruptRecord):
            StoredVerdicts.read(harness.store.sealing, "turn", whole[:at])


async def test_a_damaged_turn_is_refused_as_damaged_and_is_not_quoted(
    harness: ServiceHarness,
) -> None:
    ref, _ = await harness.submit(*CALLS)
    whole = await stored(harness, ref)
    await put(harness, ref, whole.partition(b"\n")[0] + b'\n{"look_up_order": 1}')

    with pytest.raises(CorruptRecord) as caught:
        await harness.submit(*CALLS, message_id=ref.message_id)

    assert "look_up_order" not in str(caught.value)


async def test_the_end_of_a_call_is_kept_whatever_stands_in_its_turn(
    harness: ServiceHarness,
) -> None:
    ref, _ = await harness.submit(*CALLS)
    await put(harness, ref, (await stored(harness, ref)).replace(b"\n", b"\nj", 1))
    failed = Result(ok=False, summary="no such order")

    await harness.agents.ended(
        CallEnd(ref=ref, tool="look_up_order", tool_call_id="c0", result=failed)
    )

    count = harness.keys.failures("support")
    assert await harness.command("ZCARD", count) == 0
