"""A request without a valid recent signature is refused; repeats count once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp
import pytest

from keyturn.bot.app import SlackBot
from keyturn.bot.ids import Action
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.connection import number, text
from tests.attacks.attacker import Payload, click_payload, deliver, trace, value_of
from tests.bot.bot_stack import CHANNEL, Stack
from tests.bot.signed import FORM, interaction, post, signed_headers
from tests.lifetimes import listed

STAMP, SIGNATURE = "X-Slack-Request-Timestamp", "X-Slack-Signature"
TIMES = 60
Headers = dict[str, str]


async def prepared(stack: Stack, action: Action = Action.APPROVE) -> Prepared:
    """Return a waiting call and the bytes of a click on it."""
    verdict = await stack.refund()
    card = await stack.card(verdict)
    value = value_of(stack, await stack.approval(verdict), action)
    return verdict, interaction(click_payload(card["ts"], action, value))


Prepared = tuple[Verdict, bytes]


def url_of(stack: Stack) -> str:
    assert stack.bot is not None
    return stack.bot.url


async def effects(stack: Stack, verdict: Verdict) -> tuple[int, int, int]:
    """Return the revision, the jobs and the number of authorizations of the call."""
    found = await trace(stack, verdict)
    return found.approval.rev, found.jobs, found.audit


async def test_the_same_bytes_many_times_at_once_decide_once(stack: Stack) -> None:
    async with stack.running():
        verdict, body = await prepared(stack)
        headers = signed_headers(stack.sandbox.signing_secret, body)

        answers = await asyncio.gather(
            *(post(url_of(stack), headers, body) for _ in range(TIMES))
        )

        assert {status for status, _ in answers} == {200}
        # Opened, authorized: one of each; nothing else was written.
        assert await effects(stack, verdict) == (2, 1, 2)


async def test_a_replay_opens_no_second_form(stack: Stack) -> None:
    async with stack.running():
        _, body = await prepared(stack, Action.REJECT)
        headers = signed_headers(stack.sandbox.signing_secret, body)

        await asyncio.gather(*(post(url_of(stack), headers, body) for _ in range(8)))

        calls = [call.method for call in stack.sandbox.calls]
        assert calls.count("views.open") == 1


async def test_a_replay_to_the_other_replica_or_after_a_restart_decides_nothing(
    stack: Stack,
) -> None:
    async with stack.running(), SlackBot(stack.config, stack.reviews) as other:
        verdict, body = await prepared(stack, Action.APPROVE)
        headers = signed_headers(stack.sandbox.signing_secret, body)
        await post(url_of(stack), headers, body)
        before = await effects(stack, verdict)

        elsewhere = await post(other.url, headers, body)

        assert (elsewhere[0], await effects(stack, verdict)) == (200, before)
    async with stack.running():
        assert (await post(url_of(stack), headers, body))[0] == 200
        assert await effects(stack, verdict) == before


async def test_the_mark_of_a_request_outlives_the_time_in_which_it_counts(
    stack: Stack,
) -> None:
    async with stack.running():
        _, body = await prepared(stack)
        # Slack's clock may be ahead: then the request counts for ten minutes.
        ahead = str(int(time.time()) + 299)  # noqa: TID251 - Slack's clock
        headers = signed_headers(stack.sandbox.signing_secret, body, timestamp=ahead)
        assert (await post(url_of(stack), headers, body))[0] == 200

        conn = stack.store.conn
        marks = [text(m) for m in listed(await conn.command("KEYS", "tk:*:seen:*"))]

        left = [number(await conn.command("PTTL", mark)) for mark in marks]
        assert min(left) > 600_000


def without(name: str) -> Callable[[Headers], Headers]:
    return lambda headers: {k: v for k, v in headers.items() if k != name}


def put(name: str, value: str) -> Callable[[Headers], Headers]:
    return lambda headers: {**headers, name: value}


def on(name: str, change: Callable[[str], str]) -> Callable[[Headers], Headers]:
    return lambda headers: {**headers, name: change(headers[name])}


SPOILS: dict[str, Callable[[Headers], Headers]] = {
    "no signature": without(SIGNATURE),
    "no timestamp": without(STAMP),
    "neither": lambda headers: without(STAMP)(without(SIGNATURE)(headers)),
    "empty signature": put(SIGNATURE, ""),
    "version only": put(SIGNATURE, "v0="),
    "other version": on(SIGNATURE, lambda s: s.replace("v0=", "v1=")),
    "capitals": on(SIGNATURE, str.upper),
    "capital digits": on(SIGNATURE, lambda s: "v0=" + s[3:].upper() + "A"),
    "cut": on(SIGNATURE, lambda s: s[:-1]),
    "longer": on(SIGNATURE, lambda s: s + "0"),
    "one bit": on(SIGNATURE, lambda s: s[:-1] + ("0" if s[-1] != "0" else "1")),
    "twice": on(SIGNATURE, lambda s: f"{s},{s}"),
    "not ASCII": put(SIGNATURE, "v0=" + "é" * 64),
    "Arabic digits": put(SIGNATURE, "v0=" + "\u0660" * 64),
    "not a number": put(STAMP, "yesterday"),
    "Arabic time": on(
        STAMP,
        lambda s: s.translate(
            str.maketrans("0123456789", "".join(map(chr, range(0x660, 0x66A))))
        ),
    ),
    "underscore": on(STAMP, lambda s: s[:5] + "_" + s[5:]),
    "plus": on(STAMP, lambda s: "+" + s),
    "fraction": on(STAMP, lambda s: s + ".0"),
    "exponent": put(STAMP, "1e9"),
    "negative": on(STAMP, lambda s: "-" + s),
    "huge": put(STAMP, "9" * 5000),
    "zero": put(STAMP, "0000000000"),
    "NaN": put(STAMP, "nan"),
}


@pytest.mark.parametrize("spoil", SPOILS)
async def test_a_click_under_any_other_signature_or_time_is_401(
    stack: Stack, spoil: str
) -> None:
    async with stack.running():
        verdict, body = await prepared(stack)
        before = await trace(stack, verdict)
        headers = SPOILS[spoil](signed_headers(stack.sandbox.signing_secret, body))

        status, told = await post(url_of(stack), headers, body)

        assert (status, told) == (401, "Not signed.\n")
        assert await trace(stack, verdict) == before


@pytest.mark.parametrize(
    "body",
    [b"ssl_check=1&", b"payload=%s&ssl_check=1", b"ssl_check=1&payload=%s"],
)
async def test_an_unsigned_check_of_the_certificate_carries_nothing_in(
    stack: Stack, body: bytes
) -> None:
    async with stack.running():
        verdict, click = await prepared(stack)
        before = await trace(stack, verdict)
        payload = click.removeprefix(b"payload=")
        smuggled = body % payload if b"%s" in body else body + click

        status, _ = await post(url_of(stack), {"Content-Type": FORM}, smuggled)

        assert status in {200, 401}
        assert await trace(stack, verdict) == before


async def test_a_check_of_the_certificate_inside_the_payload_needs_a_signature(
    stack: Stack,
) -> None:
    """Bolt up to 1.28 ran the handler of such a request unsigned (bolt-python#1495)."""
    async with stack.running():
        verdict, _ = await prepared(stack)
        before = await trace(stack, verdict)
        card = await stack.card(verdict)
        value = value_of(stack, await stack.approval(verdict), Action.APPROVE)
        payload: Payload = {
            **click_payload(card["ts"], Action.APPROVE, value),
            "ssl_check": "1",
        }

        status, _ = await post(
            url_of(stack), {"Content-Type": FORM}, interaction(payload)
        )

        assert (status, await trace(stack, verdict)) == (401, before)


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS", "DELETE"])
async def test_no_other_method_decides(stack: Stack, method: str) -> None:
    async with stack.running():
        verdict, body = await prepared(stack)
        before = await trace(stack, verdict)
        headers = signed_headers(stack.sandbox.signing_secret, body)

        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, url_of(stack), data=body, headers=headers
            ) as response,
        ):
            status = response.status

        assert status in {404, 405}
        assert await trace(stack, verdict) == before


async def test_a_click_of_another_workspace_is_refused_though_slack_signed_it(
    stack: Stack,
) -> None:
    async with stack.running():
        verdict, _ = await prepared(stack)
        before = await trace(stack, verdict)
        card = await stack.card(verdict)
        value = value_of(stack, await stack.approval(verdict), Action.APPROVE)
        click = click_payload(card["ts"], Action.APPROVE, value)

        status, _ = await deliver(stack, {**click, "team": {"id": "T0OTHER"}})

        assert (status, await trace(stack, verdict)) == (200, before)


async def test_a_delivery_over_a_socket_that_comes_twice_decides_once(
    each_stack: Stack,
) -> None:
    stack = each_stack
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        stack.sandbox.faults.plan_delivery("duplicate", deliveries=1)

        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        approval = await stack.approval(verdict)
        assert approval.items[0].state is ItemState.AUTHORIZED
        assert await effects(stack, verdict) == (2, 1, 2)
        assert stack.sandbox.problems == []
