"""A process that lost a thread's lease writes nothing over newer checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import LeaseLost, StoreUnavailable
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.resume import fence_tables
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.fence_tables import PostgresFence, Put, fenced
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.store_threads import under_lease
from keyturn.gateway.store.keys import keys_of_tenant
from keyturn.gateway.store.scripts.fences import Lease, holding
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import postgres_server, sample_tools
from tests.resume.ledgers import place_of, rows
from tests.resume.resume_stack import Stack, open_stack
from tests.store_secrets import SECRETS
from tests.tcp_proxy import Proxy

KEYS = keys_of_tenant("default")

CHECKPOINT: RunnableConfig = {
    "configurable": {"thread_id": "paused", "checkpoint_ns": "", "checkpoint_id": "c1"}
}

Saver = BaseCheckpointSaver[Any]
KINDS = ["sqlite", "postgres", "memory"]


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """Give the address of an empty database."""
    return postgres_server.fresh_database(postgres)


@pytest.fixture(params=KINDS)
async def savers(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[tuple[Saver, Saver]]:
    """Give two processes' savers of one database; in memory there is but one."""
    if request.param == "memory":
        one = InMemorySaver()
        yield one, one
        return
    place = str(tmp_path / "checkpoints.db")
    if request.param == "postgres":
        place = request.getfixturevalue("postgres_url")
    async with open_checkpoints(place) as first, open_checkpoints(place) as second:
        await first.adelete_thread("t1")
        yield first, second


def place(thread: str = "t1") -> RunRef:
    """Return a thread of the shop's agent."""
    return RunRef(agent="shop", thread=thread)


def runner(saver: Saver, wait: Callable[[], Awaitable[object]] | None = None) -> Runner:
    """Return the shop's agent; its model waits, if given for what."""
    return Runner(attached(sample_tools.graph(wait=wait), saver))


async def take_away(store: Store, at: RunRef) -> None:
    """End a lease in the store, as if its owner had been paused for long."""
    await store.conn.command("DEL", KEYS.lease(at.agent, at.thread))


async def history(one: Runner, thread: str = "t1") -> list[str]:
    """Return a thread's checkpoints, oldest first; each continues the one before."""
    graph = cast("Any", one)._graph
    found = [
        state
        async for state in graph.aget_state_history(
            {"configurable": {"thread_id": thread}}
        )
    ]
    ids = [state.config["configurable"]["checkpoint_id"] for state in found]
    before = [
        (state.parent_config or {"configurable": {"checkpoint_id": ""}})[
            "configurable"
        ]["checkpoint_id"]
        for state in found
    ]
    assert before == [*ids[1:], ""], "the thread was forked"
    return ids[::-1]


async def test_a_late_model_answer_changes_nothing_of_a_thread_that_went_on(
    store: Store, savers: tuple[Saver, Saver]
) -> None:
    at, asked, think = place(), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        asked.set()
        await think.wait()

    slow, quick = runner(savers[0], wait), runner(savers[1])
    late = asyncio.create_task(
        under_lease(store, KEYS, at, lambda: slow.start("t1", "hello", key="k"))
    )
    await asked.wait()
    await take_away(store, at)
    await under_lease(store, KEYS, at, lambda: quick.nudge("t1", key="k"))
    ids = await history(quick)
    think.set()

    with pytest.raises(LeaseLost):
        await late
    assert await history(quick) == ids
    assert (await quick.probe("t1")).final_message == "You said hello"


async def test_a_thread_goes_on_after_the_store_was_put_back_to_an_older_copy(
    store: Store, savers: tuple[Saver, Saver]
) -> None:
    at, one = place(), runner(savers[0])
    for key in ("a", "b", "c"):
        await under_lease(store, KEYS, at, partial(one.start, "t1", "hello", key=key))
    await store.conn.command("FLUSHALL")

    await under_lease(store, KEYS, at, lambda: one.start("t1", "again", key="k"))

    assert (await one.probe("t1")).final_message == "You said again"
    await history(one)


async def test_a_program_may_write_to_its_threads_outside_of_any_lease(
    store: Store, savers: tuple[Saver, Saver]
) -> None:
    at, one = place(), runner(savers[0])
    await one.start("t1", "hello", key="k")
    await under_lease(store, KEYS, at, lambda: one.start("t1", "again", key="k2"))
    await one.start("t1", "and again", key="k3")

    assert (await one.probe("t1")).final_message == "You said and again"


async def test_nothing_is_deleted_by_a_holder_that_lost_the_lease(
    store: Store, savers: tuple[Saver, Saver]
) -> None:
    at, one, other = place(), runner(savers[0]), runner(savers[1])
    await under_lease(store, KEYS, at, lambda: one.start("t1", "hello", key="k"))

    async def delete() -> None:
        await one.probe("t1")
        await take_away(store, at)
        await under_lease(store, KEYS, at, lambda: other.start("t1", "again", key="k2"))
        await one.delete("t1")

    with pytest.raises(LeaseLost):
        await under_lease(store, KEYS, at, delete)
    assert (await other.probe("t1")).final_message == "You said again"


async def test_a_lost_lease_asks_claims_and_ends_nothing(stack: Stack) -> None:
    async with stack.working() as gateway:
        await stack.ask(("refund", {"order": "1", "amount": 5.0}))
        [item] = await stack.asked()
        await stack.idle()
        at = place()

        # A job is done before the lease of its thread is given back.
        async def is_free() -> bool:
            lease = KEYS.lease(at.agent, at.thread)
            return not await stack.store.conn.command("EXISTS", lease)

        await eventually(is_free)

        async def late() -> None:
            await take_away(stack.store, at)
            await gateway.withdraw_items(frozenset({item.id}))

        with pytest.raises(LeaseLost):
            await under_lease(stack.store, KEYS, at, late)

    assert await stack.states() == [ItemState.PENDING]


async def test_a_holder_without_the_store_stops_by_its_clock(store: Store) -> None:
    async with Proxy(store.conn.url) as cut:
        away = Store(cut.url, secrets=SECRETS, lease_ms=400)
        ended = asyncio.Event()

        async def work() -> None:
            cut.close()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        with pytest.raises(LeaseLost):
            async with asyncio.timeout(5):
                await under_lease(away, KEYS, place(), work)
        assert ended.is_set()
        cut.open()
        await away.close()


@asynccontextmanager
async def paused_in_a_write(
    url: str, lease: Lease, writes: list[tuple[str, int]]
) -> AsyncGenerator[None]:
    """Stay in the middle of a write, as a process does that is stopped there."""
    async with open_checkpoints(url) as saver:
        fence = fence_tables.PostgresFence()
        await fence.raise_fence(saver, lease)
        inside = asyncio.Event()

        class Paused(Put[None]):
            async def by(self, saver: Saver | None) -> None:
                if saver and writes:
                    await saver.aput_writes(CHECKPOINT, writes, "task")
                inside.set()
                await asyncio.Event().wait()

        put = Paused("aput_writes", saver.aput_writes, ())
        writing = asyncio.create_task(fence.write(saver, lease, {}, put))
        await inside.wait()
        yield
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


@pytest.mark.parametrize("writes", [[], [("messages", 1)]])
async def test_a_writer_that_is_paused_in_a_transaction_holds_up_nobody_for_long(
    store: Store,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    writes: list[tuple[str, int]],
) -> None:
    monkeypatch.setattr(fence_tables, "_PAUSE_MS", 300)
    at = place("paused")
    async with (
        store.threads.lease(KEYS, "shop", "paused") as lease,
        paused_in_a_write(postgres_url, lease, writes),
        open_checkpoints(postgres_url) as saver,
    ):
        await take_away(store, at)
        async with asyncio.timeout(10):
            await under_lease(
                store, KEYS, at, lambda: runner(saver).start("paused", "hello", key="k")
            )


async def test_two_processes_fork_no_thread(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.db"
    async with (
        open_stack(store, path) as one,
        open_stack(store, path) as two,
        one.working(),
        two.working(),
    ):
        for number in range(3):
            await one.say(f"hello {number}")
            await one.words(number + 1)
        await history(one.runner)


async def test_a_thread_that_another_process_runs_fills_no_log(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with stack.store.threads.lease(stack.keys, "shop", "t1"), stack.working():
        await stack.say("hello")
        await asyncio.sleep(0.5)
    async with stack.working():
        await stack.words(1)

    assert "job.later" not in caplog.text


async def test_a_fence_that_cannot_rise_gives_nobody_a_lease(stack: Stack) -> None:
    """Beyond 2**53 Lua would give two holders one number."""
    keys = stack.keys
    await stack.store.conn.command("SET", keys.fences, str(2**53 - 2))
    threads = stack.store.threads
    async with threads.lease(keys, "shop", "t1") as last:
        assert last.fence == 2**53 - 1

    with pytest.raises(StoreUnavailable):
        async with threads.lease(keys, "shop", "t1"):
            pass


REFUSING = {
    "sqlite": "CREATE TRIGGER refuse BEFORE INSERT ON writes WHEN new.channel = 'bad' "
    "BEGIN SELECT raise(ABORT, 'bad'); END",
    "postgres": "ALTER TABLE checkpoint_writes ADD CONSTRAINT bad "
    "CHECK (channel <> 'bad')",
}


async def _never(_lease: Lease, _above: int) -> int:
    raise LeaseLost


def lease_of(thread: str, fence: int = 2) -> Lease:
    """Return a lease that lives long enough."""
    return Lease(
        f"lease:{thread}", "me", fence=fence, ends_s=now_s() + 60, renumber=_never
    )


@dataclass
class Database:
    """A database of checkpoints, by the saver that is opened on it."""

    kind: str
    place: str
    saver: BaseCheckpointSaver[Any]
    clone: BaseCheckpointSaver[Any]
    """The same, with fenced writes."""

    def run(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement in another session."""
        return rows(self.place, statement)

    def written(self, thread: str) -> list[object]:
        """Return the tasks whose results a thread has."""
        table = "writes" if self.kind == "sqlite" else "checkpoint_writes"
        query = f"SELECT task_id FROM {table} WHERE thread_id = '{thread}' ORDER BY 1"  # noqa: S608 - of this file
        return [task for (task,) in self.run(query)]

    async def known(self, *leases: Lease) -> None:
        """Store the fences of these leases in the database."""
        for lease in leases:
            with holding(lease):
                await self.clone.aget_tuple(at(lease))

    async def put(self, lease: Lease, task: str, *channels: str) -> None:
        """Write a task's result to these channels, under a lease."""
        writes = [(channel, task) for channel in channels or ("messages",)]
        with holding(lease):
            await self.clone.aput_writes(at(lease), writes, task)


def at(lease: Lease) -> RunnableConfig:
    """Return the place of a checkpoint in the thread of a lease."""
    thread = lease.key.partition(":")[2]
    place = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": "c1"}
    return {"configurable": place}


@pytest.fixture(
    params=[
        "sqlite",
        "postgres",
        "postgres without pipelines",
        "postgres by one connection",
    ]
)
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, postgres: str
) -> AsyncGenerator[Database]:
    kind, _, how = request.param.partition(" ")
    place = place_of(kind, tmp_path, postgres)
    async with open_checkpoints(place) as saver:
        if how == "without pipelines":
            saver.supports_pipeline = False  # type: ignore[attr-defined]  # as an old libpq has it
        if how == "by one connection":
            # As a program's own saver, which has no pool.
            async with AsyncPostgresSaver.from_conn_string(place) as own:
                yield Database(kind, place, own, fenced(own))
            return
        yield Database(kind, place, saver, fenced(saver))


async def both(*work: Awaitable[None]) -> list[BaseException | None]:
    return await asyncio.gather(*work, return_exceptions=True)


async def test_a_lost_lease_writes_nothing_and_fails_alone(database: Database) -> None:
    late, newer, other = lease_of("t1"), lease_of("t1", 3), lease_of("t2")
    await database.known(late, newer, other)

    found = await both(
        database.put(late, "late"),
        database.put(newer, "newer"),
        database.put(other, "other"),
    )

    assert [type(one) for one in found] == [LeaseLost, type(None), type(None)]
    assert database.written("t1") == ["newer"]
    assert database.written("t2") == ["other"]


async def test_an_older_database_takes_no_unread_write(database: Database) -> None:
    lease = lease_of("t1")
    await database.known(lease)
    database.run("UPDATE keyturn_fences SET fence = 1")

    with pytest.raises(LeaseLost):
        await database.put(lease, "a")

    assert database.written("t1") == []


async def test_a_failed_write_leaves_nothing_and_is_alone(database: Database) -> None:
    lease = lease_of("t1")
    await database.known(lease)
    # It refuses after the first row of the write was inserted.
    database.run(REFUSING[database.kind])

    found = await both(
        database.put(lease, "a"),
        database.put(lease, "b", "messages", "bad"),
        database.put(lease, "c"),
    )

    assert ["bad" in str(one) for one in found if one] == [True]
    assert database.written("t1") == ["a", "c"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_cancelled_caller_does_not_cancel_sqlite(database: Database) -> None:
    lease, saver = lease_of("t1"), database.saver
    await database.known(lease)
    async with saver.lock:  # type: ignore[attr-defined]
        gone = asyncio.create_task(database.put(lease, "a"))
        stays = asyncio.create_task(database.put(lease, "b"))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    await stays

    assert database.written("t1") == ["a", "b"]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_cancelled_postgres_write_leaves_nothing(database: Database) -> None:
    inside, saver, fence = asyncio.Event(), database.saver, PostgresFence()

    class Stuck(Put[None]):
        async def by(self, saver: BaseCheckpointSaver[Any] | None) -> None:
            await super().by(saver)
            inside.set()
            await asyncio.Event().wait()

    lease = lease_of("t1")
    await fence.raise_fence(saver, lease)
    given: Sequence[Any] = (at(lease), [("messages", 1)], "task")
    put = Stuck("aput_writes", saver.aput_writes, given)
    writing = asyncio.create_task(fence.write(saver, lease, at(lease), put))
    await inside.wait()

    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    assert database.written("t1") == []
    await database.put(lease, "next")
    assert database.written("t1") == ["next"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_fence_leaves_other_transactions_alone(database: Database) -> None:
    conn: Any = cast("Any", database.saver).conn
    # By name: an older checkpointer has no column for the path of a task.
    into = "thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value"
    await conn.execute(
        f"INSERT INTO writes ({into}) VALUES ('t2', '', 'c1', 'task', 0, 'm', '', '')"  # noqa: S608 - of this file
    )

    await database.known(lease_of("t1"))

    full = 2
    assert database.written("t2") == ["task"]
    assert not conn.in_transaction
    assert await conn.execute_fetchall("PRAGMA synchronous") == [(full,)]
