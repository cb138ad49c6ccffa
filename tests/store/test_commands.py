"""All callers of a loop share connections, and each gets its own reply."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import cast

import pytest

from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.store.connection.connection import Connection, number, text
from keyturn.gateway.store.connection.servers import MOST_CONNECTIONS
from keyturn.gateway.store.store import Store
from tests.conftest import eventually

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
