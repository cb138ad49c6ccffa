"""What is written in one step is what its parts come to, one after the other."""

from __future__ import annotations

import pytest

from tests.service.harness import ServiceHarness
from twokey.gateway.approvals import executing
from twokey.gateway.approvals.record import Item
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.group_commit import Waiting, computed
from twokey.gateway.store.store import Store


@pytest.fixture
async def seen(store: Store) -> Loaded:
    """Return an approval of three calls, as if people had approved them."""
    harness = ServiceHarness(store)
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"amount": n + 1}) for n in range(3)
    ]
    _, verdicts = await harness.submit(*calls)
    approval = await harness.approval(verdicts[0].item_id)
    items = [
        item.with_(state=ItemState.AUTHORIZED, lapses_at_ms=ends_ms)
        for item, ends_ms in zip(approval.items, (3000, 2000, 0), strict=True)
    ]
    return Loaded(approval.replacing(*items), now_ms=1000)


def starts(index: int, *, is_fenced: bool = True) -> Waiting:
    async def compute(loaded: Loaded) -> Write:
        item: Item = loaded.approval.items[index]
        change = executing.claim(
            loaded.approval, item, owner="o", lease_ms=500, now_ms=loaded.now_ms
        )
        return Write(change, unfrozen=(f"tool:{index}", "agent"), is_fenced=is_fenced)

    return Waiting(compute, (None, ""))


async def test_what_is_written_together_is_one_revision_of_all(seen: Loaded) -> None:
    one = (await computed(seen, [starts(0), starts(1), starts(2)])).as_one(seen)

    assert one.approval.rev == seen.approval.rev + 1
    assert [item.state for item in one.approval.items] == [ItemState.EXECUTING] * 3
    assert [event.item for event in one.change.events] == [
        item.id for item in seen.approval.items
    ]


async def test_what_stops_one_of_them_stops_the_step(seen: Loaded) -> None:
    """Then each is computed and compared by itself."""
    one = (await computed(seen, [starts(2), starts(0), starts(1)])).as_one(seen)

    assert one.change.before_ms == 2000
    assert set(one.unfrozen) == {"agent", "tool:0", "tool:1", "tool:2"}
    assert one.is_fenced


async def test_an_error_is_left_to_the_turn_of_its_own(seen: Loaded) -> None:
    async def fails(loaded: Loaded) -> Write:
        raise ValueError(loaded.approval.id)

    wrong, right = Waiting(fails, (None, "")), starts(0)
    group = await computed(seen, [wrong, right])
    group.tell()

    assert wrong.written is None
    assert right.written is not None


async def test_nothing_is_written_for_who_left_while_it_was_computed(
    seen: Loaded,
) -> None:
    gone = starts(0)
    compute = gone.compute

    async def leaves(loaded: Loaded) -> object:
        gone.has_left = True
        return await compute(loaded)

    gone.compute = leaves
    group = await computed(seen, [gone, starts(1)])

    states = [item.state for item in group.as_one(seen).approval.items[:2]]
    assert states == [ItemState.AUTHORIZED, ItemState.EXECUTING]


@pytest.mark.parametrize("is_fenced", [True, False])
async def test_what_is_fenced_and_what_is_not_are_two_steps(
    seen: Loaded, *, is_fenced: bool
) -> None:
    waiting = [starts(0, is_fenced=is_fenced), starts(1, is_fenced=not is_fenced)]
    one = (await computed(seen, waiting)).as_one(seen)

    assert one.is_fenced is is_fenced
    assert [item.state for item in one.approval.items[:2]] == [
        ItemState.EXECUTING,
        ItemState.AUTHORIZED,
    ]
