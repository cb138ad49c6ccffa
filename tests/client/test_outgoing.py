"""Every HTTP client uses the proxy of the environment, except for this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import aiohttp
import pytest
from typing_extensions import override
from yarl import URL

from keyturn.bot.ingress import Sockets
from keyturn.bot.web import Slack, SlackError
from keyturn.gateway.api.person_tokens import fetch
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.client.outgoing import outgoing, proxy_for
from keyturn.gateway.errors import SettingsError, StoreUnavailable

KEY = "tk_" + "0" * 16 + "_" + "0" * 64
NAMES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


@pytest.fixture
async def asked(env: pytest.MonkeyPatch) -> AsyncGenerator[list[bytes]]:
    """Return the requests to a proxy, which is the proxy of the environment."""
    heads = list[bytes]()

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        env.setenv("HTTPS_PROXY", url)
        yield heads


async def _slack(host: str) -> None:
    async with outgoing() as session:
        await Slack("xoxb-secret", api_url=f"https://{host}/", session=session).test()


async def _response_url(host: str) -> None:
    async with outgoing() as session:
        slack = Slack("xoxb-secret", api_url=f"https://{host}/", session=session)
        await slack.respond(f"https://{host}/respond", {"text": "secret"})


class _Addressed(Slack):
    @override
    async def open_socket(self, app_token: str) -> str:
        return f"{self._api_url.replace('https', 'wss')}link?secret"


async def _socket(host: str) -> None:
    async with outgoing() as session:
        slack = _Addressed("xoxb-secret", api_url=f"https://{host}/", session=session)
        sockets = Sockets(slack, "xapp-secret", nonces=None, handle=None)  # type: ignore[arg-type]
        await sockets.open(1)


async def _issuer_keys(host: str) -> None:
    await fetch(f"https://{host}/keys")


async def _gateway(host: str) -> None:
    gateway = HttpGateway(f"https://{host}", KEY)
    try:
        await gateway.note("support")
    finally:
        await gateway.aclose()


CLIENTS = [_slack, _response_url, _socket, _issuer_keys, _gateway]
FAILURES = (
    SlackError,
    aiohttp.ClientError,
    OSError,
    StoreUnavailable,
)


@pytest.mark.parametrize("ask", CLIENTS)
@pytest.mark.parametrize(
    ("host", "excepted", "is_proxied"),
    [
        ("elsewhere.invalid:9", "", True),
        ("elsewhere.invalid:9", ".invalid", False),
        ("localhost:9", "", False),
        ("127.0.0.1:9", "", False),
    ],
)
async def test_each_client_uses_the_proxy_of_the_environment(
    env: pytest.MonkeyPatch,
    asked: list[bytes],
    ask: Callable[[str], Awaitable[None]],
    host: str,
    excepted: str,
    *,
    is_proxied: bool,
) -> None:
    env.setenv("NO_PROXY", excepted)
    env.setattr("keyturn.bot.ingress.CONNECT_S", 0.5)

    with suppress(*FAILURES):
        await ask(host)

    assert bool(asked) is is_proxied
    for head in asked:
        assert head.startswith(f"CONNECT {host} ".encode())
        assert b"secret" not in head
        assert KEY.encode() not in head


@pytest.mark.parametrize(
    ("named", "scheme", "host", "proxy"),
    [
        ({"HTTPS_PROXY": "http://p:1"}, "https", "slack.com", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "wss", "wss.slack.com", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http", "slack.com", None),
        ({"https_proxy": "p:1"}, "https", "slack.com", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "http", "slack.com", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https", "slack.com", None),
        ({"ALL_PROXY": "http://p:1"}, "https", "slack.com", "http://p:1"),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "*"}, "https", "slack.com", None),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "a.com"}, "wss", "b.a.com", None),
        ({"ALL_PROXY": "http://p:1"}, "http", "127.0.0.2", None),
        ({"ALL_PROXY": "http://p:1"}, "https", "::1", None),
        ({"ALL_PROXY": "http://p:1"}, "https", "::ffff:127.0.0.1", None),
        ({"ALL_PROXY": "http://p:1"}, "https", "::ffff:10.0.0.1", "http://p:1"),
        ({"ALL_PROXY": "http://p:1"}, "https", "app.localhost", None),
        ({}, "https", "slack.com", None),
    ],
)  # fmt: skip
def test_a_proxy_is_chosen_by_the_url(
    env: pytest.MonkeyPatch,
    named: dict[str, str],
    scheme: str,
    host: str,
    proxy: str | None,
) -> None:
    for name, value in named.items():
        env.setenv(name, value)

    found = proxy_for(scheme, host)

    assert found == (URL(proxy) if proxy else None)


def test_a_proxy_of_another_kind_is_refused(env: pytest.MonkeyPatch) -> None:
    env.setenv("ALL_PROXY", "socks5://user:password@p:1")

    with pytest.raises(SettingsError, match=r"'socks5' proxy; set HTTPS_PROXY") as told:
        proxy_for("https", "slack.com")

    assert "password" not in str(told.value)
