"""A connection that breaks, hangs or lies is replaced; its promises stay true."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import pytest

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection import connection
from keyturn.gateway.store.connection.connection import Connection, number, text
from keyturn.gateway.store.connection.usable import can_pass
from keyturn.gateway.store.store import Store
from tests.store.wire import Handler, Scripted, answering, deaf, serve_tls, through
from tests.store_secrets import SECRETS
from tests.topologies import DURABLE, Node, programs

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
