"""Stored verdicts of a turn: a newer or damaged value is refused, and never misread."""

from __future__ import annotations

import pytest

from tests.service.harness import ServiceHarness
from twokey.gateway.errors import CorruptRecord, NewerRecord
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.call_progress import CallEnd
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import TurnRef, VerdictKind
from twokey.gateway.service.stored_verdicts import FORMAT, UNSEALED, StoredVerdicts
from twokey.gateway.store.packing import unpacked
from twokey.gateway.store.store import Store
from twokey.gateway.trust.seals import SEAL_BYTES

CALLS: tuple[tuple[str, JsonObject], ...] = (
    ("look_up_order", {"id": "1"}),
    ("process_refund", {"amount": 1}),
)


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


def turn_key(ref: TurnRef) -> str:
    return digest.turn_key(tenant="default", **ref.names)


async def stored(harness: ServiceHarness, ref: TurnRef) -> bytes:
    keys = harness.store.keys_of_tenant("default")
    return await harness.store.agent_load.verdicts(keys, turn_key(ref))


async def put(harness: ServiceHarness, ref: TurnRef, body: bytes) -> None:
    keys = harness.store.keys_of_tenant("default")
    await harness.store.conn.command("SET", keys.turn(turn_key(ref)), body)


def with_format(body: bytes, number: int) -> bytes:
    line, _, rest = body.partition(b"\n")
    assert rest[0] == FORMAT
    return b"%b\n%c%b" % (line, number, rest[1:])


async def test_a_turn_is_answered_again_as_it_was(harness: ServiceHarness) -> None:
    ref, verdicts = await harness.submit(*CALLS)

    _, again = await harness.submit(*CALLS, message_id=ref.message_id)

    assert again == verdicts


async def test_a_turn_of_a_newer_version_is_left_to_it(harness: ServiceHarness) -> None:
    ref, _ = await harness.submit(*CALLS)
    newer = with_format(await stored(harness, ref), FORMAT + 1)
    await put(harness, ref, newer)

    with pytest.raises(NewerRecord, match=f"format {FORMAT + 1}; this version reads"):
        await harness.submit(*CALLS, message_id=ref.message_id)

    assert await stored(harness, ref) == newer


async def test_of_verdicts_without_a_seal_only_those_that_wait_count(
    harness: ServiceHarness,
) -> None:
    """Those of format 2, which an older version wrote; anybody could write them."""
    ref, verdicts = await harness.submit(*CALLS)
    line, _, rest = (await stored(harness, ref)).partition(b"\n")
    await put(harness, ref, line + b"\n" + unpacked(rest[1 + SEAL_BYTES :]))

    _, (ran, held) = await harness.submit(*CALLS, message_id=ref.message_id)

    assert (ran.kind, ran.reason) == (VerdictKind.DENY, UNSEALED)
    assert held == verdicts[1]


async def test_every_damaged_byte_is_refused(harness: ServiceHarness) -> None:
    ref, _ = await harness.submit(*CALLS)
    whole = await stored(harness, ref)

    for at in range(len(whole)):
        for bit in range(8):
            changed = bytes([whole[at] ^ (1 << bit)])
            damaged = whole[:at] + changed + whole[at + 1 :]
            with pytest.raises((CorruptRecord, NewerRecord)):
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


@pytest.mark.parametrize("number", [FORMAT + 1, ord("j")])
async def test_the_end_of_a_call_is_kept_whatever_stands_in_its_turn(
    harness: ServiceHarness, number: int
) -> None:
    ref, _ = await harness.submit(*CALLS)
    await put(harness, ref, with_format(await stored(harness, ref), number))
    failed = Result(ok=False, summary="no such order")

    await harness.agents.ended(
        CallEnd(ref=ref, tool="look_up_order", tool_call_id="c0", result=failed)
    )

    keys = harness.store.keys_of_tenant("default")
    count = keys.failures("default", "support")
    assert await harness.store.conn.command("ZCARD", count) == 0
