"""What a failover could lose is not acknowledged, not even when it is repeated."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from redis.exceptions import NoScriptError, RedisError

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import (
    NotConfirmed,
    StoreUnavailable,
    Unanswered,
    UnsafeStore,
)
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.store_threads import StoreThreads
from keyturn.gateway.service.report.process_check import Registration, registered
from keyturn.gateway.store.connection import durability
from keyturn.gateway.store.connection.connection import (
    Connection,
    LostWriteError,
    NotConfirmedError,
    Reply,
    confirmed,
    text,
)
from keyturn.gateway.store.connection.durability import (
    CALLED,
    EngineFacts,
    durability_problems,
    ensure_durable,
    ensure_writable,
    permission_problems,
    read_facts,
)
from keyturn.gateway.store.connection.servers import Command
from keyturn.gateway.store.embedded.engine import EmbeddedEngine
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.runs.processes import ProcessInfo
from keyturn.gateway.store.scripts.script import FOLDER
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.service.harness import ANA, ServiceHarness
from tests.store_secrets import SECRETS
from tests.topologies import DURABLE, Cluster, Node, SentinelSet

KEY = "tk:{default}:x"


class Server:
    """A master whose replicas confirm according to a script, one number a ``WAIT``."""

    def __init__(self, *confirmed: int, is_kept: bool = True) -> None:
        self._confirmed = iter(confirmed)
        self._is_kept = is_kept
        self.pieces: list[list[str]] = []

    async def __call__(self, commands: Sequence[Command]) -> list[Reply]:
        self.pieces.append([str(words[0]) for words in commands])
        return [self._reply(words, commands) for words in commands]

    def _reply(self, words: Command, piece: Sequence[Command]) -> Reply:
        match words[0]:
            case "WAIT":
                return next(self._confirmed)
            case "SET":
                return b"OK" if self._is_kept or "XX" not in words else None
            case "EXEC":
                return [_done(one) for one in piece[1 : piece.index(words)]]
            case _:
                return b"QUEUED"


def _done(words: Command) -> Reply:
    return NoScriptError("No matching script.") if "unknown" in words else words[-1]


async def run(server: Server) -> Reply:
    [reply] = await confirmed(server, [("EVALSHA", "done")], KEY)
    return reply


async def test_a_reply_counts_once_a_replica_has_what_was_written() -> None:
    server = Server(0, 1)

    assert await run(server) == "done"

    # The mark is written each time: without a write, WAIT waits for nothing.
    assert server.pieces == [
        ["MULTI", "EVALSHA", "SET", "EXEC", "WAIT"],
        ["SET", "WAIT"],
    ]


async def test_without_a_replica_nothing_counts() -> None:
    with pytest.raises(NotConfirmedError):
        await run(Server(0, 0, 0))


async def test_a_master_without_the_mark_confirms_nothing() -> None:
    with pytest.raises(LostWriteError):
        await run(Server(0, 1, is_kept=False))


async def test_what_cannot_be_sent_is_refused_and_stops_nothing_beside_it(
    server_program: str, tmp_path: Path
) -> None:
    """Half of a surrogate pair has no UTF-8."""
    node = Node(server_program, tmp_path / "server", dict(DURABLE))
    node.start()
    conn = Connection(node.url)
    conn.confirmed_by = 1
    texts = ["one", "\ud83d", "two"]

    ends = await asyncio.gather(
        *(conn.keep(["SET", KEY, text]) for text in texts), return_exceptions=True
    )

    # Without a replica, nothing is confirmed.
    kinds = [NotConfirmed, UnicodeEncodeError, NotConfirmed]
    assert [type(end) for end in ends] == kinds
    await conn.close()
    node.kill()


async def test_a_master_that_is_lost_before_it_confirms_leaves_it_open() -> None:
    server = Server(0)

    async def dying(commands: Sequence[Command]) -> list[Reply]:
        if server.pieces:
            raise RedisError("Connection closed by server.")
        return await server(commands)

    with pytest.raises(NotConfirmedError):
        await confirmed(dying, [("EVALSHA", "done")], KEY)


async def test_a_script_that_is_not_known_is_told_and_not_waited_for() -> None:
    with pytest.raises(NoScriptError):
        await confirmed(Server(0, 0, 0), [("EVALSHA", "unknown")], KEY)


@pytest.fixture
async def replicated(sentinel_set: SentinelSet) -> AsyncGenerator[Store]:
    """Give a store that waits for replicas, as it is opened by the product."""
    store = Store(sentinel_set.url, secrets=SECRETS, lease_ms=2000)
    await ensure_durable(store.conn)
    yield store
    await store.close()


def replicas_of(sentinel_set: SentinelSet) -> list[Node]:
    master = sentinel_set.master()
    return [node for node in sentinel_set.servers if node is not master]


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_a_decision_is_not_acknowledged_before_a_replica_has_it(
    replicated: Store, sentinel_set: SentinelSet
) -> None:
    harness = ServiceHarness(replicated)
    click, _ = await harness.refund()
    frozen = replicas_of(sentinel_set)
    for node in frozen:
        node.pause()

    with pytest.raises(NotConfirmed):
        await harness.reviews.decide(click, Approve(), ANA)
    # The master has it by now. On a new connection, too, that is no acknowledgement.
    again = Store(sentinel_set.url, secrets=SECRETS, lease_ms=2000)
    again.conn.confirmed_by = 1
    with pytest.raises(NotConfirmed):
        await ServiceHarness(again).reviews.decide(click, Approve(), ANA)

    frozen[0].resume()
    outcome = await ServiceHarness(again).reviews.decide(click, Approve(), ANA)
    assert outcome.kind != "unknown"
    for node in frozen:
        node.resume()
    await again.close()


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_what_nobody_would_make_again_waits_for_a_replica(
    replicated: Store, sentinel_set: SentinelSet
) -> None:
    keys = replicated.keys_of_tenant("default")
    job = Job.to_resume("default", "support", "t1")
    told = Event(name=EventName.RUN_FINISHED, tenant="default")
    promises: list[Callable[[], Awaitable[object]]] = [
        partial(replicated.queue(keys).put, job),
        partial(
            StoreThreads(replicated, ServiceHarness(replicated).agents).mark,
            RunRef(agent="support", thread="t1"),
            "c1 ValueError",
        ),
        partial(replicated.outbox(keys, reader="cards").put, told),
        partial(replicated.interrupts.ask, keys, job, "i1", 10**13, told, ""),
        partial(replicated.interrupts.arm, keys, job, 10**13),
        partial(replicated.interrupts.end, keys, job, ["i1"], told),
        partial(replicated.restore_counters.named, keys, "store"),
        partial(replicated.restore_counters.add, keys, "checkpoints"),
        partial(replicated.restore_counters.put, keys, "checkpoints", 7),
    ]
    frozen = replicas_of(sentinel_set)
    for node in frozen:
        node.pause()

    said = await asyncio.gather(*(one() for one in promises), return_exceptions=True)

    for node in frozen:
        node.resume()
    assert [type(one) for one in said] == [NotConfirmed] * len(promises)


@pytest.mark.slow
@pytest.mark.xdist_group("topologies")
async def test_each_master_waits_for_its_replica(replicated_cluster: Cluster) -> None:
    store = Store(replicated_cluster.url, secrets=SECRETS, lease_ms=2000)
    await ensure_durable(store.conn)
    assert store.conn.confirmed_by == 1
    harness = ServiceHarness(store)
    click, _ = await harness.refund()
    frozen = [node for node in replicated_cluster.nodes if not _leads(node)]
    for node in frozen:
        node.pause()

    with pytest.raises(NotConfirmed):
        await harness.reviews.decide(click, Approve(), ANA)

    for node in frozen:
        node.resume()
    await store.close()


def _leads(node: Node) -> bool:
    return cast("list[object]", node.ask("ROLE"))[0] == b"master"


BOT = ProcessInfo(role="bot", where="here:1", tenant="t")
HALF = """
redis.call('SET', KEYS[1], '1', 'PX', 60000)
return redis.call('XADD', KEYS[2], '*', 'e', '')
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    """Return a store on a separate server, which a test may break."""
    async with EmbeddedEngine(tmp_path / "engine") as engine:
        opened = Store(engine.url, secrets=SECRETS)
        opened.processes.life_ms = 400
        yield opened
        # A server with snapshots does not end while it cannot write one.
        await opened.conn.command("CONFIG SET", "save", "")
        await opened.close()


async def fill_memory(conn: Connection) -> None:
    await conn.command("CONFIG SET", "maxmemory", "1")


async def make_replica(conn: Connection) -> None:
    await conn.command("REPLICAOF", "127.0.0.1", "1")


async def setting(conn: Connection, name: str) -> str:
    found = await conn.command("CONFIG GET", name)
    return text(cast("dict[str, Reply]", found)[name])


async def fail_snapshot(conn: Connection) -> None:
    """Make the server fail to write its snapshot, as on a full disk."""
    engine_folder = await setting(conn, "dir")
    # A folder in its place, since a disk cannot be filled here.
    (Path(engine_folder) / await setting(conn, "dbfilename")).mkdir()
    await conn.command("CONFIG SET", "save", "3600 1")
    await conn.command("BGSAVE")

    async def is_refused() -> bool:
        try:
            await conn.command("SET", "k", "v", "XX")
        except StoreUnavailable:
            return True
        return False

    await eventually(is_refused)


REFUSALS = [
    (fill_memory, "raise 'maxmemory'"),
    (make_replica, "set KEYTURN_REDIS_URL to its master"),
    (fail_snapshot, "make room on its disk"),
]


@pytest.mark.parametrize(("spoil", "remedy"), REFUSALS)
async def test_a_full_disk_is_reported(store: Store, spoil: Any, remedy: str) -> None:
    await ensure_writable(store.conn, Keys("default"))
    await spoil(store.conn)

    with pytest.raises(StoreUnavailable, match=remedy):
        await ensure_writable(store.conn, Keys("default"))


async def test_a_process_is_ready_once_its_store_writes_again(store: Store) -> None:
    async with registered(store, BOT) as registration:
        await fill_memory(store.conn)
        await eventually(lambda: says(registration, "takes no writes"))

        await store.conn.command("CONFIG SET", "maxmemory", "0")

        await eventually(lambda: says(registration, ""))


async def says(registration: Registration, words: str) -> bool:
    found = " ".join(registration.problems)
    return words in found if words else not found


async def test_a_script_stopped_midway_may_have_written(store: Store) -> None:
    conn = store.conn
    await conn.command("ACL", "SETUSER", "default", "-xadd")

    with pytest.raises(Unanswered, match="a part of it may be kept"):
        await conn.evalsha(HALF, ["tk:{default}:a", "tk:{default}:b"], [])

    assert await conn.command("GET", "tk:{default}:a") == b"1"


@pytest.mark.parametrize(
    ("rule", "missing"), [("-xadd", "XADD"), ("-@stream", "XACK"), ("resetkeys", "SET")]
)
async def test_weak_users_are_refused(store: Store, rule: str, missing: str) -> None:
    await store.conn.command("ACL", "SETUSER", "default", rule)

    with pytest.raises(UnsafeStore, match=rf"ACL SETUSER.*{missing.lower()}"):
        await ensure_durable(store.conn)


def test_what_scripts_call_is_known() -> None:
    sources = "".join(one.read_text() for one in FOLDER.glob("*.lua"))
    # Of a container the subcommand counts as well.
    call = r"redis\.p?call\(\s*'((?:XGROUP|XINFO)', '\w+|[A-Z]+)'"

    named = {found.replace("', '", " ") for found in re.findall(call, sources)}

    # Jobs are acknowledged and dropped by commands that `write_if.lua` gets.
    assert set(CALLED) == named | {"XACK", "XDEL"}


async def test_a_server_whose_commands_were_renamed_is_refused_by_their_names(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "CALLED", (*CALLED, "RENAMED", "XINFO RENAMED"))

    [problem] = await permission_problems(store.conn)

    assert "the server has renamed it" in problem
    assert "+renamed +xinfo|renamed" in problem


# A server that could lose an acknowledged decision is refused, with the remedy.


SAFE = EngineFacts(
    software="valkey",
    version="9.1.2",
    settings={
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
        "min-replicas-to-write": "0",
    },
)


def with_setting(name: str, value: str) -> EngineFacts:
    return replace(SAFE, settings={**(SAFE.settings or {}), name: value})


@pytest.fixture
async def conn(valkey_url: str) -> AsyncGenerator[Connection]:
    opened = Connection(valkey_url)
    yield opened
    for name, value in (SAFE.settings or {}).items():
        await opened.command("CONFIG SET", name, value)
    await opened.close()


@pytest.mark.parametrize(
    ("software", "version", "is_good"),
    [
        ("redis", "7.0.15", True),
        ("redis", "6.2.14", False),
        ("valkey", "8.1.8", True),
        ("valkey", "7.2.5", False),
        ("dragonfly", "1.30.0", False),
        ("redis", "?", False),
    ],
)
def test_untried_engines_fail(software: str, version: str, *, is_good: bool) -> None:
    problems = durability_problems(replace(SAFE, software=software, version=version))

    assert (problems == []) is is_good


@pytest.mark.parametrize(
    ("facts", "remedy"),
    [
        (with_setting("appendonly", "no"), "run: CONFIG SET appendonly yes"),
        (with_setting("appendfsync", "everysec"), "run: CONFIG SET appendfsync always"),
        (
            with_setting("maxmemory-policy", "allkeys-lru"),
            "run: CONFIG SET maxmemory-policy noeviction",
        ),
        (replace(SAFE, replicas=1), "run: CONFIG SET min-replicas-to-write 1"),
        (replace(SAFE, role="slave"), "set KEYTURN_REDIS_URL to its master"),
        (replace(SAFE, settings=None), "ACL SETUSER"),
        (replace(SAFE, clock_offset_s=-5.0), "switch on NTP"),
        (replace(SAFE, settings={}), "appendonly is ''"),
    ],
)
def test_every_danger_comes_with_what_to_do(facts: EngineFacts, remedy: str) -> None:
    problems = durability_problems(facts)

    assert remedy in problems[0]


@pytest.mark.parametrize(
    ("software", "version", "threads", "is_good"),
    [
        ("redis", "8.2.3", "4", False),
        ("redis", "8.6.3", "1", True),
        ("redis", "8.0.6", "4", True),
        ("valkey", "9.1.2", "4", False),
        ("valkey", "9.1.2", "1", True),
    ],
)
def test_a_server_whose_threads_answer_before_it_writes_is_refused(
    software: str, version: str, threads: str, *, is_good: bool
) -> None:
    facts = with_setting("io-threads", threads)

    problems = durability_problems(replace(facts, software=software, version=version))

    said = f"io-threads is {threads!r}" in " ".join(problems)
    assert said is not is_good


async def test_the_threads_of_a_server_are_asked_for(conn: Connection) -> None:
    [facts] = await read_facts(conn)

    assert (facts.settings or {})["io-threads"] == "1"


def test_a_failover_needs_a_replica_and_waits_for_none_that_is_away() -> None:
    watched = replace(SAFE, has_sentinels=True, place="10.0.0.1:6379")
    [problem] = durability_problems(watched)
    assert problem.startswith(
        "10.0.0.1:6379: min-replicas-to-write is '0': a fail-over"
    )
    [problem] = durability_problems(with_setting("min-replicas-to-write", "1"))
    assert "0 replicas are connected, so every write is refused" in problem


async def test_the_embedded_engine_is_safe(tmp_path: Path) -> None:
    async with EmbeddedEngine(tmp_path / "engine") as engine:
        conn = Connection(engine.url)

        await ensure_durable(conn)
        [facts] = await read_facts(conn)

        await conn.close()
    assert facts.name.startswith("valkey 9.")
    assert abs(facts.clock_offset_s) < 1


async def test_an_unsafe_server_is_refused_with_every_problem(conn: Connection) -> None:
    await conn.command("CONFIG SET", "appendfsync", "everysec")
    await conn.command("CONFIG SET", "maxmemory-policy", "allkeys-lru")

    with pytest.raises(UnsafeStore) as caught:
        await ensure_durable(conn)

    assert "CONFIG SET appendfsync always" in str(caught.value)
    assert "CONFIG SET maxmemory-policy noeviction" in str(caught.value)
    assert "--insecure-dev" in str(caught.value)


async def test_a_ban_on_config_is_refused(conn: Connection, valkey_url: str) -> None:
    await conn.command("ACL SETUSER", "managed", "on", ">pw", "~*", "+@all", "-config")
    managed = Connection(valkey_url.replace("://", "://managed:pw@"))

    with pytest.raises(UnsafeStore, match="CONFIG GET is forbidden here"):
        await ensure_durable(managed)

    await managed.close()
    await conn.command("ACL DELUSER", "managed")


async def test_of_a_server_too_old_only_the_version_is_named(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = conn.on_each_master

    async def redis_6(name: str, *words: str | int) -> dict[str, Reply]:
        if name == "CONFIG GET":  # of several settings: an error before Redis 7
            return await asked("CONFIG GET")
        if name == "INFO":
            facts = {"redis_version": "6.2.14", "role": "master"}
            return dict.fromkeys(await asked("PING"), facts)
        return await asked(name, *words)

    monkeypatch.setattr(conn, "on_each_master", redis_6)

    with pytest.raises(UnsafeStore) as caught:
        await ensure_durable(conn)

    assert (
        "The server is redis 6.2.14; use Redis 7 or newer, or Valkey 8 or newer."
        in str(caught.value)
    )
    assert "CONFIG GET" not in str(caught.value)
