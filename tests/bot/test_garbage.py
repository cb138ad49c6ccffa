"""Strangers who send garbage to the bot's address fill no log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from keyturn.gateway.logs import LogSettings, write_logs
from tests.bot.bot_stack import Stack
from tests.bot.signed import post, signed_headers

REQUESTS = 200
BODIES = [
    b"",
    b"payload=%7B%7D",
    b"\xff\xfe\x00 no text",
    b"payload=%7Bnot json",
    json.dumps({"type": "url_verification", "challenge": "x"}).encode(),
    json.dumps([[[[1]]]]).encode(),
]


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Leave logging as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("keyturn").setLevel(logging.NOTSET)


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
