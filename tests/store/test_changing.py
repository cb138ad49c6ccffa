"""Several approvals of one tenant change in one step: all of them or none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import cast

import pytest

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import (
    Approve,
    CallNow,
    Click,
    Decision,
    Reject,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.submit.standing import rejection_of
from keyturn.gateway.store.connection.connection import Reply, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.limits.history import Known, Use, use_of
from keyturn.gateway.store.records.atomic_write import (
    EvaluationInputs,
    Loaded,
    Write,
    WriteMany,
    write,
)
from keyturn.gateway.store.store import Store
from tests.approvals.builders import changed, click_on, pinned
from tests.lifetimes import lose_records
from tests.service.harness import ANA, BEN, ServiceHarness
from tests.store_secrets import SECRETS

WHOLE = Event(name=EventName.CALLS_DECIDED, tenant="default", reason="whole")
TOOL = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
PENDING, AUTHORIZED = ItemState.PENDING, ItemState.AUTHORIZED

Read = Mapping[str, Loaded]


@pytest.fixture
def keys(store: Store) -> Keys:
    return store.keys_of_tenant("default")


async def asked(harness: ServiceHarness, count: int = 3) -> list[Click]:
    """Ask for one refund in each of so many threads."""
    return [(await harness.refund(n + 1, thread=f"t{n}"))[0] for n in range(count)]


def decided(loaded: Loaded, decision: Decision | None = None) -> Change:
    """Return what Ana's decision makes of an approval of one call."""
    approval = loaded.approval
    click = click_on(approval)
    said, now_ms = decision or Approve(), loaded.now_ms
    return changed(
        decide(approval, click, said, ANA, now_ms=now_ms, now=CallNow(pinned(approval)))
    )


async def approved(read: Read) -> WriteMany:
    """Return an approval of each call."""
    return WriteMany([Write(decided(one)) for one in read.values()], [WHOLE])


async def read(harness: ServiceHarness, clicks: list[Click]) -> dict[str, Loaded]:
    found = [await harness.store.approvals.load(one.approval) for one in clicks]
    return {one.approval.id: one for one in found if one}


async def states(harness: ServiceHarness, clicks: list[Click]) -> list[ItemState]:
    found = await read(harness, clicks)
    return [one.approval.items[0].state for one in found.values()]


async def told(harness: ServiceHarness) -> list[Event]:
    """Return the events since the approvals were opened."""
    entries = await harness.audited()
    return [one for one in entries if one.name is not EventName.APPROVAL_OPENED]


async def test_all_have_events_and_jobs(harness: ServiceHarness, keys: Keys) -> None:
    clicks = await asked(harness)

    written = await harness.store.approvals.change_many(
        keys, [one.approval for one in clicks], approved
    )

    assert isinstance(written, WriteMany)
    assert await states(harness, clicks) == [AUTHORIZED] * 3
    first, *others = await told(harness)
    assert (first.name, first.reason) == (EventName.CALLS_DECIDED, "whole")
    assert [one.name for one in others] == [EventName.ITEM_AUTHORIZED] * 3
    assert [one.approval for one in others] == [one.approval for one in clicks]
    assert await harness.jobs() == 3


Spoil = Callable[[ServiceHarness, Keys, Loaded], Awaitable[Write | Loaded]]
"""Let something move after the reading; returns what is written, or was read."""


async def another_rev(harness: ServiceHarness, keys: Keys, one: Loaded) -> Write:
    await harness.command("HINCRBY", keys.head(one.approval.id), "rev", 1)
    return Write(decided(one))


async def gone(harness: ServiceHarness, keys: Keys, one: Loaded) -> Write:
    change, conn = Write(decided(one)), harness.store.conn
    await conn.command(
        "DEL", keys.head(one.approval.id), keys.document(one.approval.id)
    )
    return change


async def over(_: ServiceHarness, __: Keys, one: Loaded) -> Write:
    return Write(replace(decided(one), before_ms=one.now_ms))


async def frozen(harness: ServiceHarness, _: Keys, one: Loaded) -> Write:
    await harness.reviews.freezes.freeze(TOOL, "T0/U0BEN", "stop")
    return Write(decided(one), unfrozen=[str(TOOL)])


async def timer_not_due(_: ServiceHarness, __: Keys, one: Loaded) -> Write:
    return Write(replace(decided(one), fires="remind"))


async def precedents_moved(_: ServiceHarness, keys: Keys, one: Loaded) -> Write:
    known = Known(keys.precedents("sha256:0"), changes="7")
    return Write(decided(one), inputs={0: EvaluationInputs((), {}, known)})


async def window_is_full(_: ServiceHarness, keys: Keys, one: Loaded) -> Write:
    return Write(decided(one), inputs={0: EvaluationInputs([use(keys, 2)], {"w": 1})})


async def standing_ended(_: ServiceHarness, __: Keys, one: Loaded) -> Write:
    ended = one.approval.items[0].with_(state=ItemState.WITHDRAWN)
    return Write(decided(one), standing=one.approval.with_(items=(ended,)))


async def read_long_ago(_: ServiceHarness, __: Keys, one: Loaded) -> Loaded:
    return replace(one, now_ms=one.now_ms - 60_000)


def use(keys: Keys, micro: int, call: str = "c") -> Use:
    window = keys.window("w", "r")
    return use_of(window, name="w", call=call, micro=micro, within_ms=60_000)


SPOILS = (
    another_rev,
    gone,
    over,
    frozen,
    timer_not_due,
    precedents_moved,
    window_is_full,
    standing_ended,
    read_long_ago,
)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("spoil", SPOILS)
async def test_nothing_is_written_where_one_of_them_moved(
    harness: ServiceHarness, keys: Keys, spoil: Spoil, place: int
) -> None:
    clicks = await asked(harness)
    before = await read(harness, clicks)
    writes = [Write(decided(one)) for one in before.values()]
    spoiled = list(before.values())[place]
    what = await spoil(harness, keys, spoiled)
    if isinstance(what, Write):
        writes[place] = what
    else:
        before[spoiled.approval.id] = what
    left = await kept(harness)

    is_written = await write(
        harness.store.conn, keys, before, WriteMany(writes, [WHOLE])
    )

    assert not is_written
    assert await kept(harness) == left
    await lose_records(harness.store.conn)


async def kept(harness: ServiceHarness) -> dict[str, Reply]:
    """Return the whole contents of the store."""
    conn = harness.store.conn
    names = sorted(map(text, cast("list[bytes]", await conn.command("KEYS", "*"))))
    bodies = await conn.transaction(*(["DUMP", name] for name in names))
    return dict(zip(names, bodies, strict=True))


@pytest.mark.parametrize(("limit", "is_written"), [(5, True), (4, False)])
async def test_each_is_compared_with_what_those_before_it_add_to_a_window(
    harness: ServiceHarness, keys: Keys, *, limit: int, is_written: bool
) -> None:
    clicks = await asked(harness, 2)
    before = await read(harness, clicks)
    first, second = before.values()
    # Alone, each is within its evaluated limits.
    writes = [
        Write(decided(one), inputs={0: EvaluationInputs([used], {"w": total})})
        for one, used, total in (
            (first, use(keys, 2, "a"), 2),
            (second, use(keys, 3, "b"), limit),
        )
    ]

    found = await write(harness.store.conn, keys, before, WriteMany(writes))

    assert bool(found) is is_written
    assert await harness.store.windows.totals("none", 0, [use(keys, 0, "peek")]) == {
        "w": 5 if is_written else 0
    }


async def rejected(harness: ServiceHarness, one: Loaded) -> Write:
    change = decided(one, Reject(reason="no"))
    items = change.approval.items
    effects = await rejection_of(harness.store, harness.policy, change.approval, items)
    return Write(change, rejection=effects)


async def rejections(harness: ServiceHarness, keys: Keys, agent: str) -> int:
    key = keys.rejections(agent)
    return int(cast("bytes", await harness.command("GET", key)) or 0)


async def of_agents(harness: ServiceHarness, *agents: str) -> list[Click]:
    clicks: list[Click] = []
    for number, agent in enumerate(agents):
        _, verdicts = await harness.submit(
            ("process_refund", {"amount": number}), thread=f"t{number}", agent=agent
        )
        clicks.append(await harness.click(verdicts[0]))
    return clicks


async def test_a_gesture_counts_once_each(harness: ServiceHarness, keys: Keys) -> None:
    clicks = await of_agents(harness, "a", "b", "a", "c")
    before = await read(harness, clicks)
    *most, last = before.values()
    writes = [await rejected(harness, one) for one in most]

    # An approval of the third agent's call ends its row; there was none.
    changes = WriteMany([*writes, Write(decided(last))])
    assert await write(harness.store.conn, keys, before, changes)

    counted = [await rejections(harness, keys, agent) for agent in "abc"]
    assert counted == [1, 1, 0]


@pytest.mark.parametrize("is_first", [True, False])
async def test_an_authorization_of_the_same_gesture_ends_a_row_of_rejections(
    harness: ServiceHarness, keys: Keys, *, is_first: bool
) -> None:
    earlier, *clicks = await of_agents(harness, "a", "a", "a", "b")
    await harness.reviews.decide(earlier, Reject(reason="no"), BEN)
    before = await read(harness, clicks)
    one, two, three = before.values()
    writes = [Write(decided(one)), await rejected(harness, two)]
    if not is_first:
        writes = [await rejected(harness, one), Write(decided(two))]

    changes = WriteMany([*writes, await rejected(harness, three)])
    assert await write(harness.store.conn, keys, before, changes)

    assert [await rejections(harness, keys, agent) for agent in "ab"] == [0, 1]


async def test_a_gesture_pauses_once(harness: ServiceHarness, keys: Keys) -> None:
    harness.put_policy(("pause_after_rejections: 1000", "pause_after_rejections: 1"))
    store = harness.store
    clicks = await of_agents(harness, "a", "a")
    before = await read(harness, clicks)
    writes = [await rejected(harness, one) for one in before.values()]

    assert await write(store.conn, keys, before, WriteMany(writes))

    assert [str(one.scope) for one in await store.freezes.all(keys)] == ["agent a"]
    assert len(await harness.audited(EventName.AGENT_PAUSED)) == 1


async def test_a_moved_one_repeats_it(harness: ServiceHarness, keys: Keys) -> None:
    clicks, readings = await asked(harness), list[Read]()
    # Another process: changes of one process wait for each other.
    other = Store(harness.store.conn.url, secrets=SECRETS)

    async def compute(found: Read) -> WriteMany:
        readings.append(found)
        if len(readings) == 1:
            reviews = ServiceHarness(other).reviews
            await reviews.decide(clicks[2], Reject(reason="no"), BEN)
        waiting = [one for one in found.values() if one.approval.items[0].is_pending]
        return WriteMany([Write(decided(one)) for one in waiting])

    await harness.store.approvals.change_many(
        keys, [one.approval for one in clicks], compute
    )

    await other.close()
    assert await states(harness, clicks) == [*[AUTHORIZED] * 2, ItemState.REJECTED]
    assert [len(found) for found in readings] == [3, 3]


async def test_all_are_read_at_one_moment(harness: ServiceHarness, keys: Keys) -> None:
    clicks = await asked(harness, 2)
    ids = [one.approval for one in clicks]
    foreign = ids[0].replace(f"ap_{keys.tenant}_", f"ap_{keys.tenant}9_")
    unknown = [f"ap_{keys.tenant}_{'0' * 32}", foreign, "what", ""]

    async def compute(found: Read) -> list[str]:
        assert len({one.now_ms for one in found.values()}) == 1
        return list(found)

    found = await harness.store.approvals.change_many(keys, [*ids, *unknown], compute)

    assert found == ids


async def test_a_corrupt_record_stops_all(harness: ServiceHarness, keys: Keys) -> None:
    clicks = await asked(harness)
    head = keys.head(clicks[1].approval)
    await harness.command("HSET", head, "0:e", "x")

    with pytest.raises(CorruptRecord) as caught:
        await harness.store.approvals.change_many(
            keys, [one.approval for one in clicks], approved
        )

    assert caught.value.approval == clicks[1].approval
    assert await told(harness) == []


async def test_damage_is_no_known_record(harness: ServiceHarness, keys: Keys) -> None:
    click, _ = await harness.refund()
    # Without the seal, which would detect it as well: `tests.resealing`.
    await harness.store.conn.keep(["SET", keys.document(click.approval), "{}"])

    with pytest.raises(CorruptRecord):
        await harness.store.approvals.load(click.approval)
