"""Each attempt is spent once, and an unused one can be claimed again."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import AsyncMock

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.approvals.executing import Attempt
from keyturn.gateway.clock import now_s
from keyturn.gateway.embed import forget_attempts
from keyturn.gateway.errors import AlreadySpent, LeaseLost, StoreUnavailable
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.protocol.wire import Claimed, InDoubt
from keyturn.gateway.resume import ledger as ledgers
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Recovery
from keyturn.gateway.store.connection.connection import Ledger
from keyturn.gateway.store.records.atomic_write import after_spending
from keyturn.gateway.store.scripts.fences import Lease, holding
from keyturn.gateway.store.store import Store
from tests.resume.ledgers import SHORT_MS, Started, place_of, processes_of, rows
from tests.resume.test_spent_attempts import ESCALATING, RAN, Life, answer
from tests.service.harness import CHLOE, ServiceHarness

FIRST = Attempt("ap_1", 0, 1, "a")


@dataclass
class Place:
    """The place of a ledger, and a function that starts processes on it."""

    name: str
    started: Started

    def rows(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement on the ledger's database."""
        return rows(self.name, statement, *values)


@pytest.fixture(params=["sqlite", "postgres"])
def place(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path, postgres: str
) -> Place:
    name = place_of(request.param, tmp_path, postgres)
    return Place(name, processes_of(store, name))


def ledger_of(store: Store) -> Ledger:
    assert store.conn.ledger is not None
    return store.conn.ledger


async def is_free(store: Store, attempt: Attempt) -> bool:
    """Return whether another owner can spend an attempt."""
    try:
        await ledger_of(store).spend([attempt._replace(owner="b")], now_ms=1)
    except AlreadySpent:
        return False
    return True


# Repeats that people or tools are entitled to


async def released(life: Life) -> None:
    await life.claimed()
    await life.harness.agents.release(life.verdict.item_id, 1)


async def released_unbegun_and_again(life: Life) -> None:
    for owner in ("first", "second"):
        fence = await life.claimed(owner)
        item_id = life.verdict.item_id
        await life.harness.agents.release(item_id, fence, has_begun=False)


async def run_again(life: Life) -> None:
    await life.claimed()
    await life.silent()
    await life.found(Finding.RERUN)


async def asked_anew(life: Life) -> None:
    life.harness.policy = ESCALATING
    await life.refused()
    await life.approved(CHLOE)
    await life.approved()


@pytest.mark.parametrize(
    "before",
    [
        released,
        released_unbegun_and_again,
        run_again,
        asked_anew,
    ],
    ids=lambda one: one.__name__,
)
async def test_a_repeat_that_is_allowed_gets_an_attempt_of_its_own(
    place: Place, before: Callable[[Life], Awaitable[None]]
) -> None:
    async with place.started() as store:
        life = Life(ServiceHarness(store))
        await life.asks()
        await life.approved()
        await before(life)

        reply = await life.harness.agents.claim(life.claim.with_(owner="next"))

        assert isinstance(reply, Claimed)
        assert await life.harness.agents.finish(life.verdict.item_id, reply.fence, RAN)


# The difference between the ledger and Redis


@pytest.mark.parametrize("outcome", ["written", "moved", "away", "lease lost"])
async def test_an_unwritten_attempt_is_free_again(place: Place, outcome: str) -> None:
    async def write() -> bool:
        if outcome == "away":
            raise StoreUnavailable
        if outcome == "lease lost":
            raise LeaseLost
        return outcome == "written"

    async with place.started() as store:
        try:
            await after_spending(ledger_of(store), [FIRST], (), 1, write)
        except (StoreUnavailable, LeaseLost):
            assert outcome in {"away", "lease lost"}

        assert await is_free(store, FIRST) is (outcome != "written")


async def test_a_cancelled_caller_leaves_nothing_in_between(place: Place) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def write() -> bool:
        began.set()
        await goes_on.wait()
        return False

    async with place.started() as store:
        claiming = asyncio.create_task(
            after_spending(ledger_of(store), [FIRST], (), 1, write)
        )
        await began.wait()
        claiming.cancel()
        await asyncio.wait([claiming])
        goes_on.set()

        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        assert await is_free(store, FIRST)


async def test_a_claim_that_is_granted_again_is_not_given_back(place: Place) -> None:
    """The first request gets no answer from Redis; its repetition read the claim."""
    async with place.started() as store:

        async def write() -> bool:
            await ledger_of(store).spend([FIRST], now_ms=1, again=True)
            raise StoreUnavailable

        with pytest.raises(StoreUnavailable):
            await after_spending(ledger_of(store), [FIRST], (), 1, write)

        assert not await is_free(store, FIRST)


async def test_a_process_that_dies_leaves_a_doubt(place: Place) -> None:
    """Nothing is lost and nothing runs twice: people decide whether it runs again."""
    async with place.started(SHORT_MS) as store:
        life = Life(ServiceHarness(store))
        await life.asks()
        await life.approved()
        died = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.resume.dying_claim", store.conn.url),
            *(place.name, life.claim.model_dump_json()),
        )
        assert await died.wait() == -signal.SIGKILL
        item = await life.harness.item(life.verdict.item_id)
        assert item.state is ItemState.AUTHORIZED

        reply = await answer(life.harness, life.claim.with_(owner="next"))
        assert isinstance(reply, InDoubt)
        await life.found(Finding.RERUN)

        assert await life.claimed("next") == 2


async def test_people_who_let_a_restored_call_run_are_asked_once(place: Place) -> None:
    """People were informed that it may have run; the ledger does not ask again."""
    async with place.started() as store:
        life = Life(ServiceHarness(store))
        await life.asks()
        await life.approved()
        approval = await life.harness.approval(life.verdict.item_id)
        lost = Attempt(approval.id, 0, 1, "lost")
        await ledger_of(store).spend([lost], now_ms=approval.items[0].changed_at_ms)
        await Recovery(store, Runners({}, InMemorySaver())).doubt_all()
        await life.found(Finding.RERUN)

        await life.claimed("next")


# The ledger itself


async def test_an_attempt_is_spent_by_one_of_many(place: Place) -> None:
    async with place.started() as one, place.started() as other:
        spent = await asyncio.gather(
            *(
                ledger_of(store).spend([FIRST._replace(owner=f"w{n}")], now_ms=1)
                for n in range(8)
                for store in (one, other)
            ),
            return_exceptions=True,
        )

    assert [type(found) for found in spent if found] == [AlreadySpent] * 15


async def test_all_of_several_attempts_are_spent_or_none(place: Place) -> None:
    second = FIRST._replace(item=1)
    async with place.started() as store:
        await ledger_of(store).spend([second], now_ms=1)
        with pytest.raises(AlreadySpent):
            await ledger_of(store).spend([FIRST, second], now_ms=1)

        assert await is_free(store, FIRST)


async def test_an_end_stays_spent_whatever_a_claim_gives_back(place: Place) -> None:
    async with place.started() as store:
        ledger = ledger_of(store)
        await ledger.spend([FIRST], now_ms=1)
        await ledger.spend([FIRST._replace(owner="")], now_ms=2)
        await ledger.take_back([FIRST], now_ms=1)

        assert not await is_free(store, FIRST)


async def test_only_the_same_claim_may_spend_its_attempt_again(place: Place) -> None:
    async with place.started() as store:
        await ledger_of(store).spend([FIRST], now_ms=1)
        await ledger_of(store).spend([FIRST], now_ms=1, again=True)
        for attempt, again in (
            (FIRST, False),
            (FIRST._replace(owner="b"), True),
            (FIRST._replace(number=0), True),
        ):
            with pytest.raises(AlreadySpent):
                await ledger_of(store).spend([attempt], now_ms=1, again=again)


async def unmoved(lease: Lease, above: int) -> int:
    del lease
    return above + 1


async def test_a_former_holder_of_a_lease_spends_nothing(place: Place) -> None:
    lease = Lease("lease:t1", "me", fence=4, ends_s=now_s() + 60, renumber=unmoved)
    async with place.started() as store:
        place.rows("INSERT INTO keyturn_fences VALUES (?, ?)", "t1", 4)
        with holding(lease):
            await ledger_of(store).spend([FIRST], now_ms=1)
        place.rows("UPDATE keyturn_fences SET fence = ?", 5)
        with holding(lease), pytest.raises(LeaseLost):
            await ledger_of(store).spend([FIRST._replace(number=2)], now_ms=1)

        assert await is_free(store, FIRST._replace(number=2))


async def test_a_former_holder_of_a_lease_still_reports_its_result(
    place: Place,
) -> None:
    lease = Lease("lease:t1", "me", fence=4, ends_s=now_s() + 60, renumber=unmoved)
    async with place.started() as store:
        life = Life(ServiceHarness(store))
        await life.asks()
        await life.approved()
        fence = await life.claimed()
        await life.silent()
        place.rows("INSERT INTO keyturn_fences VALUES (?, ?)", "t1", 5)
        item_id = life.verdict.item_id

        with holding(lease):
            assert await life.harness.agents.finish(item_id, fence, RAN)

        assert (await life.harness.item(item_id)).state is ItemState.EXECUTED


async def test_rows_are_deleted_once_no_record_can_use_them(place: Place) -> None:
    async with place.started() as store:
        await ledger_of(store).spend([FIRST], now_ms=1)
        await ledger_of(store).spend([FIRST._replace(item=1)], now_ms=2)
        await ledger_of(store).forget(2 + ledgers.KEPT_MS)

        assert place.rows("SELECT item FROM keyturn_attempts") == [(1,)]


async def test_a_store_whose_clock_is_far_ahead_has_nothing_forgotten(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.started() as store:
        at_ms = round(now_s() * 1000)
        await ledger_of(store).spend([FIRST], now_ms=at_ms)
        ahead = AsyncMock(return_value=at_ms + 2 * ledgers.KEPT_MS)
        monkeypatch.setattr(store.conn, "now_ms", ahead)

        await forget_attempts(store, ledger_of(store))

        assert place.rows("SELECT item FROM keyturn_attempts") == [(0,)]


async def test_an_unused_attempt_is_given_back(place: Place) -> None:
    async with place.started() as store:
        await ledger_of(store).spend([FIRST], now_ms=1)
        place.rows("ALTER TABLE keyturn_attempts RENAME TO gone")
        await ledger_of(store).take_back([FIRST], now_ms=1)
        place.rows("ALTER TABLE gone RENAME TO keyturn_attempts")
        await ledger_of(store).spend([FIRST._replace(item=1)], now_ms=2)

        await ledger_of(store).spend([FIRST._replace(owner="b")], now_ms=3)


async def test_a_connection_that_broke_is_opened_again(place: Place) -> None:
    async with place.started() as store:
        await ledger_of(store).spend([FIRST], now_ms=1)
        ledger_of(store)._connection.close()  # type: ignore[attr-defined]
        await ledger_of(store).spend([FIRST._replace(number=2)], now_ms=1)


async def test_a_ledger_that_cannot_be_written_starts_nothing(place: Place) -> None:
    async with place.started() as store:
        life = Life(ServiceHarness(store))
        await life.asks()
        await life.approved()
        place.rows("ALTER TABLE keyturn_attempts RENAME TO gone")
        with pytest.raises(StoreUnavailable, match="ledger"):
            await life.harness.agents.claim(life.claim)
        item = await life.harness.item(life.verdict.item_id)
        assert item.state is ItemState.AUTHORIZED
        place.rows("ALTER TABLE gone RENAME TO keyturn_attempts")

        await life.claimed()


async def test_a_user_who_may_not_create_tables_has_the_ledger_that_a_gateway_made(
    store: Store, tmp_path: Path, postgres: str
) -> None:
    name = place_of("postgres", tmp_path, postgres)
    with psycopg.connect(name, autocommit=True) as own:
        own.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        own.execute("DROP ROLE IF EXISTS reader_of_ledgers")
        own.execute("CREATE ROLE reader_of_ledgers LOGIN")
    user = processes_of(store, name.replace("keyturn@", "reader_of_ledgers@"))

    with pytest.raises(StoreUnavailable, match="may create tables"):
        async with user():
            pass
    async with processes_of(store, name)() as process:
        await ledger_of(process).spend([FIRST], now_ms=1)
    rows(name, "GRANT SELECT, INSERT, UPDATE ON keyturn_attempts TO reader_of_ledgers")
    async with user() as process:
        assert not await is_free(process, FIRST)
