"""Send one message over HTTPS to a receiver that may do anything.

No redirect is followed, no proxy of the environment is used, nothing is looked up
twice, the whole attempt has one deadline, and of the answer only its status is read and
how long to wait.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import aiohttp

from twokey.gateway.errors import SettingsError
from twokey.gateway.webhook_settings import WebhookSettings
from twokey.gateway.webhooks.addresses import (
    AddressRefused,
    CheckedResolver,
    Resolve,
    system_resolve,
)

GONE = 410
"""The receiver wants no such messages any more (Standard Webhooks)."""

_LONGEST_PAUSE_S = 3600.0
_LONGEST_ERROR = 200

# Each before those that it is a kind of.
_REASONS: dict[type[Exception], str] = {
    aiohttp.ClientConnectorCertificateError: "its certificate is not trusted",
    aiohttp.ClientConnectorDNSError: "the name of its host cannot be looked up",
    aiohttp.ClientConnectorSSLError: "it does not speak TLS as it should",
    aiohttp.ClientConnectorError: "no connection to it could be made",
    aiohttp.ServerDisconnectedError: "it closed the connection without an answer",
}


@dataclass(frozen=True)
class Answer:
    """What a receiver answered.

    Attributes:
        status: of HTTP; 0 where there was no answer.
        error: why it does not count as received; "" where it does.
        pause_s: how long the receiver asks to wait.
    """

    status: int = 0
    error: str = ""
    pause_s: float = 0.0


class Poster:
    """Sends messages; to be closed.

    Args:
        settings: which hosts may be private, whom to trust, how long to wait.
        resolve: returns the addresses of a host.

    Raises:
        SettingsError: when the file of certificates cannot be used.
    """

    def __init__(
        self, settings: WebhookSettings, resolve: Resolve = system_resolve
    ) -> None:
        self._timeout_s = settings.timeout_s
        connector = aiohttp.TCPConnector(
            resolver=CheckedResolver(settings.private_hosts, resolve),
            use_dns_cache=False,
            # So that each message goes to an address that was checked for it.
            force_close=True,
            ssl=trust(settings.certificates),
            limit=0,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a message and return what came of it; never fails."""
        given = {
            **headers,
            "Content-Type": "application/json",
            "User-Agent": "Twokey-Webhooks/1",
            "Accept-Encoding": "identity",
        }
        try:
            # The body of the answer is not read: leaving the block ends the connection.
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(
                    url, data=body, headers=given, allow_redirects=False
                ) as response,
            ):
                return _answer(response.status, response.headers.get("Retry-After", ""))
        except TimeoutError:
            return Answer(error=f"no answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(error=_why(error))


def _answer(status: int, retry_after: str) -> Answer:
    if status // 100 == 2:  # noqa: PLR2004 - 2xx
        return Answer(status)
    why = f"status {status}"
    if status // 100 == 3:  # noqa: PLR2004 - 3xx
        why += ", and redirects are not followed"
    return Answer(status, why, _pause_s(retry_after))


def _pause_s(text: str) -> float:
    """Return how long to wait, in seconds; 0 for what says nothing."""
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _LONGEST_PAUSE_S)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        # The latter for a day or year of many digits.
        return 0.0
    if at.tzinfo is None:
        return 0.0
    # The receiver's clock said when; how far ours is from it does not matter much here.
    left_s = (at - datetime.now(UTC)).total_seconds()  # noqa: TID251 - as above
    return min(max(left_s, 0.0), _LONGEST_PAUSE_S)


def _why(error: Exception) -> str:
    """Return why there was no answer, in a few words of ours."""
    # An error of a connection holds the one behind it, with the sentence that helps.
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, AddressRefused):
            return str(found)[:_LONGEST_ERROR].rstrip(".")
        found = getattr(found, "os_error", None) or found.__cause__
    for kind, why in _REASONS.items():
        if isinstance(error, kind):
            return why
    # Not its text, which may quote what the receiver sent.
    return f"no answer that can be read ({type(error).__name__})"


def trust(certificates: Path | None) -> ssl.SSLContext:
    """Return whom messages are sent to, by their certificates.

    Raises:
        SettingsError: when the file of certificates cannot be used.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificates is not None:
        try:
            context.load_verify_locations(certificates)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"The certificates {str(certificates)!r} cannot be used "
                f"({error.strerror}); see 'webhooks.certificates'."
            ) from error
    return context
