"""A window counts what a turn reserved, once, and while it is held."""

from __future__ import annotations

import pytest

from keyturn.gateway.policy.windows import MAX_MICRO
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.store.limits.history import HOLD_MS, as_rows, use_of
from keyturn.gateway.store.records.atomic_write import Preconditions
from keyturn.gateway.store.store import Store

RUN = RunRef(agent="a", thread="t")


@pytest.mark.parametrize("micro", [-1, MAX_MICRO + 1])
def test_an_amount_that_would_bend_a_sum_is_no_use(micro: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        use_of("w", name="w", call="c", micro=micro, within_ms=1)


async def test_a_reservation_counts_once_while_it_is_held(store: Store) -> None:
    """A process may die between the reservation and the opening of the turn."""
    keys, turn = store.keys_of_tenant("default"), "sha256:" + "1" * 64
    window = keys.window("w", "k")
    uses = [
        use_of(window, name="w", call=call, micro=micro, within_ms=1000)
        for call, micro in (("c", 5), ("d", 7))
    ]
    calls = [[use] for use in uses]

    found = [await store.windows.reserve(keys, turn, calls) for _ in range(2)]

    assert found == [[{"w": 5}, {"w": 12}]] * 2
    peek = [use_of(window, name="w", call="peek", micro=0, within_ms=1)]
    for passes_ms, total in ((HOLD_MS, 12), (HOLD_MS, 0)):
        for use in uses:
            await store.conn.command("ZINCRBY", window, -passes_ms, use.use)
        assert await store.windows.totals("none", 0, peek) == {"w": total}


async def test_a_turn_evaluated_too_long_is_evaluated_again(store: Store) -> None:
    keys, turn = store.keys_of_tenant("default"), "sha256:" + "1" * 64
    use = use_of(keys.window("w", "k"), name="w", call="c", micro=5,
                 within_ms=1000)  # fmt: skip
    await store.windows.reserve(keys, turn, [[use]])
    preconditions = Preconditions(
        RUN, ("a", "t"), (), 1, 1, counted=[use], reserved=[use]
    )
    await store.conn.command("DEL", keys.reservation(turn, as_rows([use])))

    opened = await store.approvals.open_turn(
        keys,
        turn,
        [],
        verdicts=b"\n",
        events=[],
        preconditions=preconditions,
    )

    assert opened is None


async def test_a_turn_with_verdicts_reserves_nothing(store: Store) -> None:
    keys, turn = store.keys_of_tenant("default"), "sha256:" + "1" * 64
    window = keys.window("w", "k")
    use = use_of(window, name="w", call="c", micro=5, within_ms=1000)
    await store.approvals.open_turn(
        keys, turn, [], verdicts=b"\n", events=[],
        preconditions=Preconditions(RUN, ("a", "t"), (), 1, 1),
    )  # fmt: skip

    assert await store.windows.reserve(keys, turn, [[use]]) is None
    assert await store.conn.command("EXISTS", window) == 0
