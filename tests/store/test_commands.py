"""All callers of a loop share connections, and each gets its own reply."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from pathlib import Path
from typing import cast

import pytest

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection import connection
from keyturn.gateway.store.connection.connection import Connection, number, text
from keyturn.gateway.store.connection.servers import MOST_CONNECTIONS
from keyturn.gateway.store.connection.usable import can_pass
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.store.wire import Handler, Scripted, answering, deaf, serve_tls, through
from tests.store_secrets import SECRETS
from tests.topologies import DURABLE, Node, programs

MANY = 10_000


@pytest.fixture
async def conn(valkey_url: str) -> AsyncGenerator[Connection]:
    """Give a connection to an empty server."""
    opened = Connection(f"{valkey_url}?client_name=tested")
    await opened.command("FLUSHALL")
    yield opened
    await opened.command("FLUSHALL")
    await opened.close()


async def clients(conn: Connection) -> list[str]:
    """Return the server's list of connections of the tested client."""
    rows = text(await conn.command("CLIENT", "LIST")).splitlines()
    return [row for row in rows if " name=tested " in row]


async def is_blocked(conn: Connection) -> bool:
    return any(" cmd=blpop " in row for row in await clients(conn))


async def echo(conn: Connection, word: str) -> bool:
    return text(await conn.command("ECHO", word)) == word


async def test_ten_thousand_callers_share_some_connections(conn: Connection) -> None:
    right = await asyncio.gather(*(echo(conn, f"word {at}") for at in range(MANY)))

    assert all(right)
    assert len(await clients(conn)) <= MOST_CONNECTIONS


async def test_a_reply_of_who_gave_up_reaches_nobody_else(conn: Connection) -> None:
    for seed in range(20):
        dice = random.Random(seed)  # noqa: S311 - who gives up when
        tasks = [asyncio.create_task(echo(conn, f"{seed}.{at}")) for at in range(300)]
        doomed = dice.sample(tasks, 150)
        while doomed:
            for _ in range(dice.randrange(40)):
                doomed.pop().cancel() if doomed else None
            await asyncio.sleep(0)
        ends = await asyncio.gather(*tasks, return_exceptions=True)

        assert all(
            end is True or isinstance(end, asyncio.CancelledError) for end in ends
        )
        assert ends.count(True) >= 150


async def test_commands_of_a_transaction_are_not_separated(conn: Connection) -> None:
    async def both(value: int) -> list[object]:
        *_, first, second = await conn.transaction(
            ["SET", "first", value], ["SET", "second", value],
            ["GET", "first"], ["GET", "second"],
        )  # fmt: skip
        return [number(first), number(second)]

    async def other(value: int) -> None:
        await conn.command("SET", "first", -value)

    seen = await asyncio.gather(
        *(both(value) for value in range(500)), *(other(value) for value in range(500))
    )

    assert seen[:500] == [[value, value] for value in range(500)]


async def test_an_error_inside_a_transaction_is_its_own(conn: Connection) -> None:
    await conn.command("SET", "text", "no number")
    good = [asyncio.create_task(echo(conn, f"{at}")) for at in range(100)]

    with pytest.raises(StoreUnavailable, match="not an integer"):
        await conn.transaction(["SET", "kept", "1"], ["INCR", "text"], ["GET", "text"])
    with pytest.raises(StoreUnavailable, match="unknown command"):
        await conn.transaction(["SET", "refused", "1"], ["NO-SUCH-COMMAND"])

    assert all(await asyncio.gather(*good))
    assert await conn.command("GET", "kept") == b"1"
    assert await conn.command("GET", "refused") is None
    assert await conn.transaction(["GET", "kept"]) == [b"1"]


async def test_what_cannot_be_sent_fails_alone(conn: Connection) -> None:
    good = [asyncio.create_task(echo(conn, f"{at}")) for at in range(10)]

    with pytest.raises(StoreUnavailable, match="DataError"):
        await conn.command("ECHO", cast("str", None))
    with pytest.raises(UnicodeEncodeError):
        await conn.command("ECHO", "\ud800")

    assert all(await asyncio.gather(*good))


async def test_a_reader_that_waits_keeps_nobody_waiting(conn: Connection) -> None:
    reader = asyncio.create_task(conn.command("BLPOP", "list", 8))

    await eventually(lambda: is_blocked(conn))
    assert await echo(conn, "past it")
    assert not reader.done()

    await conn.command("RPUSH", "list", "value")
    assert await reader == (b"list", b"value")
    # And its connection is used again.
    await conn.command("RPUSH", "list", "value")
    assert await conn.command("BLPOP", "list", 8) == (b"list", b"value")
    assert len(await clients(conn)) <= 3


async def test_a_reader_that_gave_up_takes_nothing(conn: Connection) -> None:
    reader = asyncio.create_task(conn.command("BLPOP", "list", 8))

    async def is_alone() -> bool:
        return not await is_blocked(conn)

    await eventually(lambda: is_blocked(conn))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await eventually(is_alone)

    await conn.command("RPUSH", "list", "value")
    assert await conn.command("LRANGE", "list", 0, -1) == [b"value"]


async def test_a_script_the_server_forgot_is_sent_again(conn: Connection) -> None:
    source = "return {ARGV[1]}"

    async def run(at: int) -> bool:
        return await conn.evalsha(source, [], [f"{at}"]) == [str(at).encode()]

    async def forget() -> bool:
        return bool(await conn.command("SCRIPT", "FLUSH"))

    calls = [run(at) if at % 10 else forget() for at in range(1, 500)]

    assert all(await asyncio.gather(*calls))


async def test_the_url_names_its_database(conn: Connection, valkey_url: str) -> None:
    await conn.command("ACL SETUSER", "a:b", "on", ">p@ss", "~*", "+@all")
    there = valkey_url.replace("://", "://a%3Ab:p%40ss@")
    named = Connection(f"{there}?db=3&client_name=by-url")
    wrong = Connection(valkey_url.replace("://", "://a%3Ab:wrong@"))
    try:
        said = text(await named.command("CLIENT", "INFO"))

        assert " name=by-url " in said
        assert " db=3 " in said
        assert " user=a:b " in said
        with pytest.raises(StoreUnavailable, match="AuthenticationError"):
            await wrong.command("PING")
    finally:
        await named.close()
        await wrong.close()
        await conn.command("ACL DELUSER", "a:b")


async def test_a_close_ends_waiting_calls(conn: Connection, store: Store) -> None:
    waiting = asyncio.create_task(conn.command("BLPOP", "list", 8))

    await eventually(lambda: is_blocked(conn))
    others = [asyncio.create_task(conn.command("PING")) for _ in range(10)]
    await asyncio.sleep(0)

    await conn.close()

    ends = await asyncio.gather(waiting, *others, return_exceptions=True)
    assert isinstance(ends[0], StoreUnavailable)
    # What the server had answered by then is a reply.
    assert all(end is True or isinstance(end, StoreUnavailable) for end in ends[1:])

    async def are_gone() -> bool:
        return not await clients(store.conn)

    await eventually(are_gone)


# A connection serves every event loop of a process, and closes them all.


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return an event loop that runs in a separate thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def client_id(conn: Connection) -> int:
    """Return the server's number of the connection that this loop uses."""
    return number(await conn.command("CLIENT", "ID"))


async def test_each_loop_has_connections_of_its_own_until_all_are_closed(
    store: Store, other_loop: asyncio.AbstractEventLoop
) -> None:
    conn = Connection(store.conn.url)
    theirs = await asyncio.wrap_future(
        asyncio.run_coroutine_threadsafe(client_id(conn), other_loop)
    )
    ours = await client_id(conn)

    async def connected() -> set[int]:
        rows = text(await store.conn.command("CLIENT", "LIST")).split()
        return {int(one[3:]) for one in rows if one.startswith("id=")}

    assert ours != theirs
    assert {ours, theirs} <= await connected()

    await conn.close()

    async def are_gone() -> bool:
        return not {ours, theirs} & await connected()

    await eventually(are_gone)


OK = b"+OK\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Generator[Node]:
    """Start a server that a test may kill or pause."""
    found = programs()
    program = found.get("valkey") or found["redis"]
    started = Node(program, tmp_path / "server", dict(DURABLE))
    started.start()
    yield started
    started.kill()


@pytest.fixture
async def opened() -> AsyncGenerator[Callable[[str], Connection]]:
    """Open connections that are closed after the test."""
    made: list[Connection] = []

    def open_(url: str) -> Connection:
        made.append(Connection(url))
        return made[-1]

    yield open_
    for one in made:
        await one.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Make a call take half a second."""
    monkeypatch.setattr(connection, "CALL_S", 0.5)
    return 0.5


Open = Callable[[str], Connection]


async def test_acknowledged_writes_survive_a_kill(server: Node, opened: Open) -> None:
    conn = opened(server.url)
    kept: list[int] = []

    async def write(value: int) -> None:
        # An outage may be longer than a call bridges; then its caller asks again.
        while True:
            with contextlib.suppress(StoreUnavailable):
                await conn.command("SADD", "kept", value)
                kept.append(value)
                return

    writers = [asyncio.create_task(write(value)) for value in range(5000)]
    while len(kept) < 1000:  # noqa: ASYNC110 - the writers fill it
        await asyncio.sleep(0)
    server.kill()
    await asyncio.to_thread(server.start)
    await asyncio.gather(*writers)

    assert sorted(kept) == list(range(5000))
    assert await conn.command("SCARD", "kept") == 5000


async def test_a_short_break_is_bridged(server: Node, opened: Open) -> None:
    conn = opened(server.url)
    other = opened(server.url)
    await conn.command("PING")

    for _ in range(20):
        asked = [asyncio.create_task(conn.command("ECHO", at)) for at in range(20)]
        await other.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        assert [number(one) for one in await asyncio.gather(*asked)] == [*range(20)]


async def test_a_server_that_hangs_costs_its_callers_a_bounded_time(
    server: Node, opened: Open, impatient: float
) -> None:
    conn = opened(server.url)
    await conn.command("PING")
    server.pause()
    try:
        calls = [conn.command("INCR", "asked") for _ in range(50)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        server.resume()

    assert all(isinstance(end, StoreUnavailable) for end in ends)
    assert await conn.command("PING")


async def test_a_connection_that_nobody_answers_is_replaced_however_short_the_calls(
    tmp_path: Path, opened: Open, impatient: float
) -> None:
    """No caller waits as long as a silence is a death."""
    answers = answering(lambda _: OK)
    async with Scripted(tmp_path, deaf, answers) as server:
        conn = opened(server.url)

        async with asyncio.timeout(20):
            reply = None
            while reply != b"OK":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(impatient / 10):
                        reply = await conn.command("GET", "key")

        assert server.opened == 2


@pytest.mark.parametrize("most", range(0, 40, 3))
async def test_a_reply_that_is_cut_off_is_asked_for_again(
    tmp_path: Path, valkey_url: str, opened: Open, most: int
) -> None:
    def cut(data: bytes) -> list[bytes]:
        return [data[:most], b""] if most else [b""]

    def whole(data: bytes) -> list[bytes]:
        return [data]

    hurt, well = (through(valkey_url, way) for way in (cut, whole))
    async with Scripted(tmp_path, hurt, well) as wire:
        conn = opened(wire.url)
        calls = [conn.command("ECHO", f"a long word {at}") for at in range(20)]

        replies = await asyncio.gather(*calls)

    assert [text(one) for one in replies] == [f"a long word {at}" for at in range(20)]


@pytest.mark.parametrize(
    "lie",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n+OK\r\n", b"*1\r\n:x\r\n"],
    ids=["another protocol", "a reply too many", "no number"],
)
async def test_after_a_reply_that_is_none_the_connection_is_replaced(
    tmp_path: Path, opened: Open, lie: bytes
) -> None:
    liar = answering(lambda _: lie)
    honest = answering(lambda words: b"$%d\r\n%s\r\n" % (len(words[-1]), words[-1]))
    async with Scripted(tmp_path, liar, honest) as server:
        conn = opened(server.url)

        with contextlib.suppress(StoreUnavailable):
            await conn.command("ECHO", "first")

        assert text(await conn.command("ECHO", "second")) == "second"
        assert server.opened == 2


async def test_a_server_that_hangs_up_is_away(tmp_path: Path, opened: Open) -> None:
    async def full(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR max number of clients reached\r\n")
        await writer.drain()

    async with Scripted(tmp_path, full) as server:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await opened(server.url).command("PING")

        assert 4 <= server.opened <= 8, "it is tried three times more"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a self-signed certificate for 127.0.0.1, with its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("this machine has no openssl")
    place = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        [
            program, "req", "-x509", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", place,
            "-out", place.with_name("certificate.pem"), "-days", "1",
            "-subj", "/CN=tested", "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    with place.open("ab") as both:
        both.write(place.with_name("certificate.pem").read_bytes())
    return place


async def test_tls_is_spoken_and_the_certificate_is_checked(
    certificate: Path, valkey_url: str, opened: Open
) -> None:
    def whole(data: bytes) -> list[bytes]:
        return [data]

    handler: Handler = through(valkey_url, whole)
    server = await serve_tls(handler, certificate)
    host, port = server.sockets[0].getsockname()[:2]
    trusted = certificate.with_name("certificate.pem")
    large = "x" * 3_000_000
    try:
        conn = opened(f"rediss://{host}:{port}/2?ssl_ca_certs={trusted}")
        calls = [conn.command("ECHO", f"{at}") for at in range(500)]
        assert [number(one) for one in await asyncio.gather(*calls)] == [*range(500)]
        assert text(await conn.command("ECHO", large)) == large
        assert " db=2 " in text(await conn.command("CLIENT", "INFO"))

        with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_F") as caught:
            await opened(f"rediss://{host}:{port}").command("PING")
        # A start ends at once: no server that comes back has another certificate.
        assert not can_pass(caught.value)
        assert "?ssl_ca_certs=" in str(caught.value)
        trusting = opened(f"rediss://{host}:{port}?ssl_cert_reqs=none")
        assert await trusting.command("PING")
    finally:
        server.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_fork_does_not_read_its_parents_replies(valkey_url: str) -> None:
    conn = Connection(valkey_url)
    loop = asyncio.new_event_loop()

    async def echo(word: str) -> str:
        return text(await conn.command("ECHO", word))

    async def ids() -> int:
        return number(await conn.command("CLIENT", "ID"))

    parents = loop.run_until_complete(ids())
    child = os.fork()
    if not child:
        from_child = loop.run_until_complete(ids())
        os._exit(0 if from_child != parents else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert loop.run_until_complete(ids()) == parents
    assert loop.run_until_complete(echo("parent")) == "parent"
    loop.run_until_complete(conn.close())
    loop.close()


# A request is new once, also where the store's answer about it got lost.

DIGEST = "sha256:" + "5" * 64


async def test_a_request_is_new_once(store: Store) -> None:
    keys = store.keys_of_tenant("default")

    found = await asyncio.gather(
        *(store.cards.is_first(keys, DIGEST) for _ in range(10))
    )

    assert sorted(found) == [False] * 9 + [True]


async def test_a_request_whose_record_was_not_confirmed_is_still_new(
    store: Store, valkey_url: str, tmp_path: Path
) -> None:
    """The connection breaks between the write and its answer, and is opened again."""
    lost: list[bytes] = []

    def lose_the_first(data: bytes) -> list[bytes]:
        lost.append(data)
        return [b""]

    broken, whole = through(valkey_url, lose_the_first), through(valkey_url, _as_it_is)
    async with Scripted(tmp_path, broken, whole) as wire:
        over = Store(wire.url, secrets=SECRETS, lease_ms=2000)
        keys = over.keys_of_tenant("default")

        assert await over.cards.is_first(keys, DIGEST)
        assert lost, "it was written"
        assert not await over.cards.is_first(keys, DIGEST)
        await over.close()
    assert not await store.cards.is_first(keys, DIGEST)


def _as_it_is(data: bytes) -> list[bytes]:
    return [data]


REFUSALS = {
    "read only": b"-READONLY You can't write against a read only replica.\r\n",
    "read only in a script": b"-READONLY You can't write against a read only replica. "
    b"script: 5f0, on @user_script:3.\r\n",
    "read only in a script of an old server": b"-ERR Error running script (call to f_1)"
    b": @user_script:3: @user_script: 3: -READONLY You can't write against a read only "
    b"replica. \r\n",
    "read only inside a transaction": b"*1\r\n-READONLY You can't write.\r\n",
    "cut off from its master": b"-MASTERDOWN Link with MASTER is down and "
    b"replica-serve-stale-data is set to 'no'.\r\n",
    "demoted while a command waits": b"-UNBLOCKED force unblock from blocking "
    b"operation, instance state changed (master -> replica?)\r\n",
    "loading": b"-LOADING Valkey is loading the dataset in memory\r\n",
    "without replicas": b"-NOREPLICAS Not enough good replicas to write.\r\n",
}


@pytest.mark.parametrize(
    "words", [("SET", "k", "v"), ("BLMOVE", "k", "l", "LEFT", "LEFT", 1)]
)
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_server_that_cannot_work_as_a_master_is_left(
    tmp_path: Path, refusal: str, words: tuple[str | int, ...]
) -> None:
    before = answering(lambda _: REFUSALS[refusal])
    async with Scripted(tmp_path, before, answering(lambda _: b"+OK\r\n")) as server:
        conn = Connection(server.url)

        # Some refusals are returned to the caller, who retries.
        async def is_done() -> bool:
            try:
                await conn.command(*words)
            except StoreUnavailable:
                return False
            return True

        await eventually(is_done, within_s=5)
        await conn.close()
    assert server.opened == 2


async def test_a_lasting_replica_is_asked_with_pauses(tmp_path: Path) -> None:
    async with Scripted(
        tmp_path, answering(lambda _: REFUSALS["read only in a script"])
    ) as server:
        conn = Connection(server.url)
        async with asyncio.timeout(5):
            for _ in range(2):
                with pytest.raises(
                    StoreUnavailable, match="set KEYTURN_REDIS_URL to its master"
                ) as told:
                    await conn.evalsha("return 1", ["k"], [])
                assert "Nothing was acknowledged" in str(told.value)
        await conn.close()
    assert server.opened <= 8
