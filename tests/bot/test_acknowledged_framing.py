"""On a connection with whatever framing, the short answer is counted as any other one.

Behind a proxy many clients share a connection: an answer too many, or one too few,
would reach somebody else.
"""

from __future__ import annotations

import re

import pytest
from aiohttp import web

from tests.bot.test_acknowledgement import (
    Handler,
    acknowledge,
    as_aiohttp_does,
    connected,
    names,
)

LAST = (
    b"POST /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)
_ANSWER = re.compile(rb"(?=HTTP/1\.[01] [0-9]{3} )")


def sent(*headers: str, body: str = "{}", line: str = "POST / HTTP/1.1") -> bytes:
    """Return a request, and behind it what may be its body or another request."""
    return "\r\n".join([line, "Host: x", *headers, "", body]).encode("latin-1")


LENGTH = "Content-Length: 2"
CHUNKED = "Transfer-Encoding: chunked"
SMUGGLED = "POST /smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
EMPTY = f"0\r\n\r\n{SMUGGLED}"

ONE_ANSWER = {
    "a length and chunks": sent(LENGTH, CHUNKED, body=EMPTY),
    "chunks and a length": sent(CHUNKED, f"Content-Length: {len(EMPTY)}", body=EMPTY),
    "two lengths": sent(LENGTH, f"Content-Length: {2 + len(SMUGGLED)}"),
    "the same length twice": sent(LENGTH, LENGTH),
    "lengths in a list": sent("Content-Length: 2, 2"),
    "a length with a sign": sent("Content-Length: +2"),
    "a negative length": sent("Content-Length: -2"),
    "a hexadecimal length": sent("Content-Length: 0x2"),
    "a length in other digits": sent("Content-Length: \xb2"),
    "no length": sent("Content-Length:"),
    "a blank before the colon": sent("Content-Length : 2"),
    "chunks of another kind": sent("Transfer-Encoding: xchunked", body=EMPTY),
    "chunks before another coding": sent(
        "Transfer-Encoding: chunked, identity", body=EMPTY
    ),
    "chunks twice": sent(CHUNKED, CHUNKED, body=EMPTY),
    "a chunk with a sign": sent(CHUNKED, body="+2\r\n{}\r\n" + EMPTY),
    "a hexadecimal chunk": sent(CHUNKED, body="0x2\r\n{}\r\n" + EMPTY),
    "a chunk without an end": sent(CHUNKED, body="2\r\n{}" + EMPTY),
    "a chunk too large": sent(CHUNKED, body="f" * 17 + "0\r\n{}\r\n" + EMPTY),
    "a control character in a header": sent(LENGTH, "X: a\x00b"),
    "another version": sent(LENGTH, line="POST / HTTP/2.0"),
    "what begins another version": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a request of 1991": b"GET /\r\n\r\n",
    "no request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}
"""No second request is read behind these."""

ANSWERED = {
    "a length": sent(LENGTH),
    "chunks": sent(CHUNKED, body="2\r\n{}\r\n0\r\n\r\n"),
    "chunks with a trailer": sent(
        CHUNKED, body="2\r\n{}\r\n0\r\nX-Slack-Signature: v0=0\r\n\r\n"
    ),
    "chunks with words": sent(CHUNKED, body="2;a=b\r\n{}\r\n0\r\n\r\n"),
    "two at once": sent(LENGTH) + sent(LENGTH),
    "three of different kinds": sent(LENGTH)
    + sent(CHUNKED, body="0\r\n\r\n")
    + sent(LENGTH),
    "who waits for a word first": sent(LENGTH, "Expect: 100-continue"),
    "who waits for another word": sent(LENGTH, "Expect: tea"),
    "the older version that stays": sent(
        LENGTH, "Connection: keep-alive", line="POST / HTTP/1.0"
    )
    * 2,
    "another protocol": sent(LENGTH, "Connection: Upgrade", "Upgrade: h2c"),
    "a body that nobody wants": sent(LENGTH, line="GET / HTTP/1.1"),
    "a whole address": sent(LENGTH, line="POST http://y/ HTTP/1.1"),
    "two hosts": sent(LENGTH, "Host: y"),
    "an empty line first": b"\r\n" + sent(LENGTH),
}


async def answers(handler: Handler, asked: bytes) -> tuple[list[str], list[set[str]]]:
    """Return which requests were read, and what each answer says."""
    seen = list[str]()

    async def noted(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        seen.append(f"{request.method} {request.path} {body!r}")
        return await handler(request)

    async with connected(noted) as (reader, writer):
        writer.write(asked + LAST)
        said = await reader.read()
    return seen, [names(one) for one in _ANSWER.split(said) if one]


@pytest.mark.parametrize(
    "asked",
    [*ONE_ANSWER.values(), *ANSWERED.values()],
    ids=[*ONE_ANSWER, *ANSWERED],
)
async def test_each_request_gets_the_answer_that_aiohttp_would_give(
    asked: bytes,
) -> None:
    seen, said = await answers(acknowledge, asked)

    assert (seen, said) == await answers(as_aiohttp_does, asked)


@pytest.mark.parametrize("asked", ONE_ANSWER.values(), ids=ONE_ANSWER)
async def test_what_two_readers_would_frame_differently_hides_no_request(
    asked: bytes,
) -> None:
    seen, said = await answers(acknowledge, asked)

    assert len(said) <= 1
    assert not any("smuggled" in one or "last" in one for one in seen)
