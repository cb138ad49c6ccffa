"""A webhook goes to the address that was checked, and to none that is not allowed."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
from aiohttp import web
from pydantic import ValidationError

from keyturn.gateway.service_settings import WebhookSettings, WebhookTarget
from keyturn.gateway.webhooks import Answer, Poster, is_allowed
from tests.webhooks.receiver import (
    HOST,
    Names,
    Receiver,
    answering,
    receiving,
    waiting_for,
)

REFUSED = [
    *("0.0.0.1"),
    *("169.254.169.254", "169.254.1.1", "100.100.100.200"),
    *("192.0.0.8", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("192.88.99.1", "168.63.129.16"),
    *("::", "::7f00:1", "fe80::1", "fe80::1%1", "fd00:ec2::254"),
    *("fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00::1%1"),
    *("fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:8.8.8.8"),
    *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "2002:7f00:1::"),
    *("2001::1", "2001:db8::1", "3fff::1", "5f00::1", "100::1"),
    *("", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1"),
]
PRIVATE = [
    *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
    *("100.64.0.1", "::1", "fc00::1"),
]
PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111"]


@pytest.mark.parametrize("address", [*REFUSED, *PRIVATE, *PUBLIC])
def test_only_public_addresses_and_named_hosts_count(address: str) -> None:
    assert is_allowed(address) is (address in PUBLIC)
    may_be_private = is_allowed(address, may_be_private=True)
    assert may_be_private is (address in {*PUBLIC, *PRIVATE})


@pytest.mark.parametrize(
    "url",
    [
        *("http://hooks.test/", "ftp://hooks.test/", "//hooks.test/", "hooks.test"),
        *("https://", "https:///x", "https://hooks.test:0/", "https://hooks.test:x/"),
        *(
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://127.1/",
            "https://1.2.3.4./",
        ),
        *("https://2130706433/", "https://0x7f000001/", "https://0177.0.0.1/"),
        *("https://a.0x1/", "https://ana:secret@hooks.test/", "https://@hooks.test/"),
        *("https://hooks test/", "https://höoks.test/"),
        *("https://hooks.test/\n", "https://hooks.test/ä", "https://" + "a" * 2100),
        *("https://[fe80::1%25eth0]/", "https://hooks.test\\@evil.test/"),
    ],
)
def test_a_target_is_a_host_by_https(url: str) -> None:
    with pytest.raises(ValidationError):
        WebhookTarget(url=url, agents=("billing",))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "a b", "", "https://x", "10"])
def test_a_private_host_is_a_name(host: str) -> None:
    with pytest.raises(ValidationError):
        WebhookSettings(private_hosts=(host,))


async def post(
    receiver: Receiver,
    names: Names,
    *,
    times: int = 1,
    private: bool = True,
    url: str = "",
    timeout_s: float = 30.0,
) -> list[Answer]:
    settings = WebhookSettings(
        private_hosts=(HOST, "localhost") if private else (), timeout_s=timeout_s
    )
    poster = Poster(settings, names)
    try:
        return [
            await poster.post(url or receiver.url(), b"{}", {"webhook-id": "msg_1"})
            for _ in range(times)
        ]
    finally:
        await poster.close()


async def test_a_host_that_is_allowed_is_reached(receiver: Receiver) -> None:
    names = Names(["127.0.0.1"])

    [answer] = await post(receiver, names)

    assert answer == Answer(204)
    assert names.asked == [HOST]


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"]]
)
async def test_nothing_is_sent_to_a_host_of_which_one_address_is_private(
    receiver: Receiver, addresses: list[str]
) -> None:
    [answer] = await post(receiver, Names(addresses), private=False)

    assert "is private" in answer.error
    assert receiver.requests == []


async def test_a_name_that_moves_later_is_refused(receiver: Receiver) -> None:
    names = Names(["127.0.0.1"], ["169.254.169.254"])

    answers = await post(receiver, names, times=3)

    assert [one.status for one in answers] == [204, 0, 0]
    assert "169.254.169.254" in answers[1].error
    # Resolved once for each connection: the checked address is the connected one.
    assert names.asked == [HOST] * 3
    assert len(receiver.requests) == 1


async def test_no_redirect_is_followed(receiver: Receiver) -> None:
    names = Names(["127.0.0.1"])
    for target in ("http://169.254.169.254/latest", receiver.url(path="/elsewhere")):
        receiver.answer = answering(307, Location=target)
        [answer] = await post(receiver, names)
        assert answer.error == "status 307"

    assert len(receiver.requests) == 2
    assert names.asked == [HOST] * 2


async def test_no_proxy_of_the_environment_is_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    [answer] = await post(receiver, Names(["127.0.0.1"]))

    assert answer == Answer(204)


async def test_untrusted_hosts_are_refused(receiver: Receiver, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    names = Names(["127.0.0.1"])
    async with receiving(other) as stranger:
        [by_another] = await post(receiver, names, url=stranger.url())
    [of_another_name] = await post(receiver, names, url=receiver.url("other.test"))

    assert by_another.error.startswith("its certificate is not trusted")
    assert of_another_name.error
    assert receiver.requests == []


async def test_a_receiver_that_never_answers_is_given_up(receiver: Receiver) -> None:
    never = asyncio.Event()
    receiver.answer = waiting_for(never)
    [answer] = await post(receiver, Names(["127.0.0.1"]), timeout_s=0.5)
    never.set()

    assert answer.error == "no answer within 0.5 s"


async def test_of_a_long_answer_nothing_is_kept(receiver: Receiver) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 2_000_000_000:
            await response.write(b"x" * 65536)
            sent += 65536
        return response

    receiver.answer = flood
    [answer] = await post(receiver, Names(["127.0.0.1"]))

    assert answer == Answer(200)
    assert sent < 100_000_000


@pytest.mark.parametrize(
    ("given", "pause_s"),
    [("7", 7.0), ("Wed, 21 Oct 2215 07:28:00 GMT", 0.0), ("٣", 0.0)],
)
async def test_a_receiver_may_ask_for_a_pause(
    receiver: Receiver, given: str, pause_s: float
) -> None:
    receiver.answer = answering(429, Retry_After=given)
    [answer] = await post(receiver, Names(["127.0.0.1"]))

    assert answer == Answer(429, "status 429", pause_s)


async def test_a_name_server_that_is_silent_takes_no_thread_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = threading.Event()

    def silent(*_: object, **__: object) -> list[object]:
        ends.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    poster = Poster(WebhookSettings(timeout_s=0.5))
    try:
        posts = [poster.post("https://hooks.test/", b"{}", {}) for _ in range(40)]
        answers = await asyncio.gather(*posts)
        async with asyncio.timeout(10):
            await asyncio.to_thread(threading.get_ident)
    finally:
        ends.set()
        await poster.close()
    assert {one.error for one in answers} == {"no answer within 0.5 s"}


async def test_nobody_listens(receiver: Receiver) -> None:
    url = f"https://{HOST}:1/"
    [answer] = await post(receiver, Names(["127.0.0.1"]), url=url)
    [nowhere] = await post(receiver, Names([]), url=url)

    assert (answer.status, nowhere.status) == (0, 0)
    assert answer.error.startswith("no program listens there")
    assert nowhere.error == "no machine of this name was found"
