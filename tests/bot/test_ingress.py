"""What Slack did not sign just now, and once, reaches no listener; nothing is a 500."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from slack_bolt.response import BoltResponse

from keyturn.bot import ingress
from keyturn.bot.ingress import (
    RETRY_NUM,
    Delivery,
    Ingress,
    StoreNonces,
    handle_once,
    signature_problem,
)
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.health import Health
from keyturn.gateway.logs import LogSettings, write_logs
from tests.bot.bot_stack import Stack
from tests.bot.signed import FORM, post, signed_headers

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
BODY = b"payload=%7B%7D"


@dataclass
class Door:
    """An ingress without a bot: it counts the requests that pass."""

    url: str = ""
    seen: list[Delivery] = field(default_factory=list[Delivery])
    nonces: set[str] = field(default_factory=set[str])
    problems: list[str] = field(default_factory=list[str])
    is_store_down: bool = False

    async def is_first(self, digest: str) -> bool:
        if self.is_store_down:
            raise StoreUnavailable("The store does not answer.")
        is_new = digest not in self.nonces
        self.nonces.add(digest)
        return is_new

    async def forget(self, digest: str) -> None:
        if self.is_store_down:
            raise StoreUnavailable("The store does not answer.")
        self.nonces.discard(digest)

    async def handle(self, request: Delivery) -> BoltResponse:
        self.seen.append(request)
        is_later = request.body == "later"
        return BoltResponse(status=503 if is_later else 200, body='{"ok": 1}')

    async def ready(self) -> list[str]:
        return self.problems

    async def facts(self) -> dict[str, object]:
        return {}

    async def metrics(self) -> bytes:
        if self.is_store_down:
            raise StoreUnavailable("gone")
        return b"keyturn_up 1\n"


@asynccontextmanager
async def opened(
    secret: str = SECRET, door: Door | None = None
) -> AsyncGenerator[Door]:
    door = door or Door()
    gate = Ingress(
        signing_secret=secret,
        receive=partial(
            handle_once, nonces=cast("StoreNonces", door), handle=door.handle
        ),
        health=Health(door.ready, door.facts, door.metrics),
    )
    runner = web.ServerRunner(gate.server(), shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    door.url = f"http://127.0.0.1:{runner.addresses[0][1]}/slack/events"
    try:
        yield door
    finally:
        await runner.cleanup()


def place(door: Door) -> tuple[str, int]:
    return "127.0.0.1", int(door.url.split(":")[2].split("/")[0])


def changed(name: str, value: str | None) -> Callable[[dict[str, str]], None]:
    def change(headers: dict[str, str]) -> None:
        headers.pop(name)
        if value is not None:
            headers[name] = value

    return change


TIMESTAMP, SIGNATURE = "X-Slack-Request-Timestamp", "X-Slack-Signature"
NOW = 1_700_000_000
ARABIC = "\u0661\u0667" + "\u0660" * 8
WIDE = "\uff21"
EXAMPLE = "a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"


@pytest.mark.parametrize(
    "spoil",
    [
        changed(TIMESTAMP, None),
        changed(TIMESTAMP, "1_700_000_000"),
        changed(TIMESTAMP, ARABIC),
        changed(TIMESTAMP, "-1"),
        changed(TIMESTAMP, "0000000000"),
        changed(TIMESTAMP, "9" * 5000),
        changed(SIGNATURE, None),
        changed(SIGNATURE, "v0=" + "0" * 64),
        changed(SIGNATURE, "v0=" + "0" * 65),
        changed(SIGNATURE, "v0=" + WIDE * 64),
    ],
)
async def test_a_bad_signature_is_401(spoil: Callable[[dict[str, str]], None]) -> None:
    async with opened() as door:
        headers = signed_headers(SECRET, BODY)
        spoil(headers)

        status, _ = await post(door.url, headers, BODY)

        assert (status, door.seen) == (401, [])


@pytest.mark.parametrize(("shift_s", "status"), [(-299, 200), (-302, 401), (302, 401)])
async def test_a_request_counts_for_five_minutes(shift_s: int, status: int) -> None:
    async with opened() as door:
        at = str(int(time.time()) + shift_s)  # noqa: TID251 - Slack's clock

        found, _ = await post(
            door.url, signed_headers(SECRET, BODY, timestamp=at), BODY
        )

        assert found == status


async def test_the_raw_bytes_are_what_is_signed() -> None:
    async with opened() as door:
        headers = signed_headers(SECRET, BODY)

        status, _ = await post(door.url, headers, BODY + b" ")

        assert status == 401


@given(st.text(max_size=80), st.text(max_size=80), st.binary(max_size=80))
def test_no_header_raises_an_error(timestamp: str, signature: str, body: bytes) -> None:
    headers = {TIMESTAMP: timestamp, SIGNATURE: signature}

    assert signature_problem(SECRET, headers, body, now_s=NOW) != ""


def test_slacks_own_example_verifies() -> None:
    # https://docs.slack.dev/authentication/verifying-requests-from-slack
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA"
        b"&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J"
        b"%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        TIMESTAMP: "1531420618",
        SIGNATURE: f"v0={EXAMPLE}",
    }

    assert signature_problem(SECRET, headers, body, now_s=1531420618) == ""


async def test_a_replay_is_answered_calmly(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as door:
        headers = signed_headers(SECRET, BODY)
        first = await post(door.url, headers, BODY)

        with caplog.at_level(logging.WARNING):
            again = await asyncio.gather(
                *(post(door.url, headers, BODY) for _ in range(5))
            )

        assert first == (200, '{"ok": 1}')
        assert again == [(200, "")] * 5
        assert len(door.seen) == 1
        assert "ingress.replayed" in caplog.text


async def test_an_event_that_is_repeated_alike_is_asked_for_again() -> None:
    """The process that had it first may have been killed with it."""
    async with opened() as door:
        headers = signed_headers(SECRET, BODY)
        await post(door.url, headers, BODY)
        later = signed_headers(SECRET, BODY, timestamp=str(int(time.time()) + 60))  # noqa: TID251 - Slack's clock

        answers = [
            await post(door.url, {**each, RETRY_NUM: str(number)}, BODY)
            for number, each in enumerate((headers, later), start=1)
        ]

        assert [status for status, _ in answers] == [503, 200]
        assert len(door.seen) == 2


async def test_without_the_store_a_request_is_marked_and_not_lost() -> None:
    async with opened() as door:
        door.is_store_down = True

        status, _ = await post(door.url, signed_headers(SECRET, BODY), BODY)

        assert status == 200
        assert [request.is_recorded for request in door.seen] == [False]


@pytest.mark.parametrize(
    ("body", "expected"), [(b"\xff\xfe", 400), (b"x" * 1_100_000, 413)]
)
async def test_an_unreadable_signed_body_is_refused(body: bytes, expected: int) -> None:
    async with opened() as door:
        status, _ = await post(door.url, signed_headers(SECRET, body), body)

        assert (status, door.seen) == (expected, [])


@pytest.mark.parametrize(
    ("body", "extra", "status"),
    [
        (b"ssl_check=1&token=legacy", {}, 200),
        (b"token=legacy&ssl_check=1", {}, 200),
        (b"ssl_check=1&token=legacy", {SIGNATURE: "v0=junk"}, 401),
        (b"payload=%7B%22ssl_check%22%3A%221%22%7D", {}, 401),
        (b"ssl_check=2", {}, 401),
    ],
)
async def test_an_unsigned_ssl_check_is_answered_and_runs_nothing(
    body: bytes, extra: dict[str, str], status: int
) -> None:
    async with opened() as door:
        found, _ = await post(door.url, {"Content-Type": FORM, **extra}, body)

        assert (found, door.seen) == (status, [])


async def test_what_could_not_be_kept_may_be_delivered_again_alike() -> None:
    async with opened() as door:
        headers = signed_headers(SECRET, b"later")

        answers = [await post(door.url, headers, b"later") for _ in range(2)]
        door.is_store_down = True
        answers.append(await post(door.url, headers, b"later"))

        assert [status for status, _ in answers] == [503] * 3
        assert len(door.seen) == 3


async def test_health_is_always_told_and_readiness_with_its_reasons() -> None:
    async with opened() as door, aiohttp.ClientSession() as session:
        base = door.url.removesuffix("/slack/events")
        async with session.get(f"{base}/healthz") as healthy:
            assert (healthy.status, await healthy.text()) == (200, "ok\n")
        async with session.get(f"{base}/readyz") as ready:
            assert ready.status == 200
        door.problems = ["The store does not answer."]
        async with session.get(f"{base}/readyz") as unready:
            assert unready.status == 503
            assert (await unready.json())["problems"] == door.problems
        async with session.get(f"{door.url}?ssl_check=1") as checked:
            assert checked.status == 200
        async with session.get(f"{base}/admin") as other:
            assert other.status == 404


async def test_an_endless_header_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress, "HEADER_TIMEOUT_S", 0.2)
    async with opened() as door:
        reader, writer = await asyncio.open_connection(*place(door))
        writer.write(b"POST /slack/events HTTP/1.1\r\nHost: x\r\nX-Slow: ")

        with pytest.raises(ConnectionError):
            await read_to_the_end(reader)

        writer.close()


async def test_a_whole_request_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress, "MAX_CONNECTIONS", 2)
    async with opened(door=SlowDoor()) as door:
        assert isinstance(door, SlowDoor)
        asked = [await asyncio.open_connection(*place(door)) for _ in "ab"]
        for _, writer in asked:
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            await door.working.acquire()

        late = await asyncio.open_connection(*place(door))

        with pytest.raises(ConnectionError):
            await read_to_the_end(late[0])
        door.may_end.set()
        for reader, writer in asked:
            await reader.readuntil(b'{"ready": true}')
            writer.close()
        late[1].close()


@dataclass
class SlowDoor(Door):
    """A door whose readiness takes until it may end."""

    working: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def ready(self) -> list[str]:
        self.working.release()
        await self.may_end.wait()
        return []


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the other side closes; a bare close counts as cut off."""
    async with asyncio.timeout(30):
        data = await reader.read()
    if not data:
        raise ConnectionResetError
    return data


async def test_metrics_are_told_as_prometheus_reads_them() -> None:
    async with opened() as door, aiohttp.ClientSession() as session:
        url = door.url.replace("/slack/events", "/metrics")
        async with session.get(url) as told:
            assert told.headers["Content-Type"].startswith("text/plain; version=")
            assert await told.read() == b"keyturn_up 1\n"
        # A scrape fails then: zeros would be untrue.
        door.is_store_down = True
        async with session.get(url) as refused:
            assert refused.status == 503


async def test_in_socket_mode_nobody_is_let_in_by_http() -> None:
    async with opened(secret="") as door:
        status, _ = await post(door.url, signed_headers("", BODY), BODY)

        assert (status, door.seen) == (404, [])


REQUESTS = 200
BODIES = [
    b"",
    b"payload=%7B%7D",
    b"\xff\xfe\x00 no text",
    b"payload=%7Bnot json",
    json.dumps({"type": "url_verification", "challenge": "x"}).encode(),
    json.dumps([[[[1]]]]).encode(),
]


async def test_unsigned_requests_are_a_few_lines_and_no_stack_trace(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    async with stack.running() as bot:
        await stack.bot_is_quiet()
        write_logs(LogSettings())
        capsys.readouterr()
        for number in range(REQUESTS):
            body = BODIES[number % len(BODIES)]
            headers = signed_headers("not the secret", body) if number % 2 else {}

            status, _ = await post(bot.url, headers, body)

            assert status == 401
        lines = capsys.readouterr().err.splitlines()

    assert any("ingress.refused" in line for line in lines)
    assert len(lines) < 10, lines
    assert not [line for line in lines if "Traceback" in line]
