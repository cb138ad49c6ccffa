"""Verify people's tokens (OpenID Connect), and map them to people in Slack.

A token counts if the configured issuer signed it for this gateway, it has not expired,
and one of its claims names a person in the settings. Only signatures by key pairs
count: with a shared key, every verifier could also make tokens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import jwt

from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.approvals.decisions import AccountKind, Gesture, Reviewer
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.failures import any_failure
from keyturn.gateway.protocol.http_problems import NO_TOKEN, NOT_ALLOWED, UNAVAILABLE
from keyturn.gateway.service_settings import PeopleSettings

logger = logging.getLogger(__name__)

ALGORITHMS = [
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
]
LEEWAY_S = 30.0
"""Tolerated difference between two clocks."""

MOST_AGE_S = 12 * 3600.0
"""Longest age of a token, whatever its expiry."""

FRESH_S = 600.0
"""How long the issuer's keys are cached."""

AGAIN_S = 15.0
"""Shortest time between two readings because of an unknown key."""

_FETCH_S = 5.0
_MOST_BYTES = 256 * 1024
_LONGEST_TOKEN = 16 * 1024

_REFUSED = (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError)
_OUT_OF_TIME = (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError)

Fetch = Callable[[str], Awaitable[bytes]]


async def fetch(url: str) -> bytes:
    """Return the body at a URL; raises OSError, ValueError or a client's error."""
    async with (
        outgoing(timeout_s=_FETCH_S) as session,
        # A redirect would let another server choose the trusted keys.
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status != 200:  # noqa: PLR2004 - OK
            raise OSError(f"status {response.status}")
        body = await response.content.read(_MOST_BYTES + 1)
        if len(body) > _MOST_BYTES:
            raise ValueError("too long")
        return body


class PersonTokens:
    """Verifies tokens of people.

    Args:
        settings: the issuer, the audience, and the reviewers.
        now_s: Unix seconds by the store: with a wrong clock of this machine, an expired
            token could count again.
        fetch: reads the issuer's documents.
        clock_s: a clock that never goes back.
    """

    def __init__(
        self,
        settings: PeopleSettings,
        *,
        now_s: Callable[[], float],
        fetch: Fetch = fetch,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._fetch = fetch
        self._clock_s = clock_s
        self._now_s = now_s
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_s = self._asked_s = -math.inf
        self._lock = asyncio.Lock()

    async def reviewer(self, token: str) -> Reviewer:
        """Return the reviewer of a token.

        Raises:
            Refusal: when the token is invalid, or its person is not a reviewer here.
        """
        claims = await self._claims(token)
        claim = self._settings.claim
        named = claims.get(claim)
        is_verified = claim != "email" or claims.get("email_verified") is True
        if not (isinstance(named, str) and named and is_verified):
            raise Refusal(
                NO_TOKEN,
                f"The token does not identify you: its claim {claim!r} is missing, or "
                "not verified.",
            )
        person = self._settings.reviewers.get(named)
        if person is None:
            raise Refusal(
                NOT_ALLOWED,
                "This person may not decide here; 'api.people.reviewers' in the "
                "settings lists the reviewers.",
            )
        return self.known(person.user)

    def known(self, user: str) -> Reviewer:
        """Return a person by Slack user id, from the current settings."""
        team = self._settings.team
        for person in self._settings.reviewers.values():
            if person.user == user:
                return Reviewer(
                    team=team,
                    user=user,
                    name=person.name,
                    usergroups=frozenset(person.usergroups),
                    account=AccountKind.MEMBER,
                    gesture=Gesture.API,
                )
        # A person who is no longer listed may have left or changed.
        return Reviewer(team=team, user=user, account=AccountKind.UNKNOWN)

    async def _claims(self, token: str) -> dict[str, Any]:
        try:
            kid = jwt.get_unverified_header(token[:_LONGEST_TOKEN]).get("kid")
            key = await self._key(kid if isinstance(kid, str) else "")
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                options={
                    "require": ["exp", "iat", "iss", "aud", "sub"],
                    # These would use the clock of this machine.
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
            self._check_times(claims)
        except _REFUSED as error:
            # Without its text, which may quote the token.
            logger.warning("api.token_refused why=%s", type(error).__name__)
            is_late = isinstance(error, _OUT_OF_TIME)
            clocks = " If it is new, the clock of the store or the issuer is wrong."
            raise Refusal(
                NO_TOKEN,
                "This token was refused "
                f"({type(error).__name__}); send one of {self._settings.issuer} for "
                f"{self._settings.audience!r} that has not expired."
                f"{clocks if is_late else ''}",
                {"WWW-Authenticate": "Bearer"},
            ) from error
        return claims

    def _check_times(self, claims: dict[str, Any]) -> None:
        now_s = self._now_s()
        # Numbers may be written as text; other values are refused (ValueError).
        begins = [int(claims[name]) for name in ("iat", "nbf") if name in claims]
        if max(begins) > now_s + LEEWAY_S:
            raise jwt.ImmatureSignatureError("not yet valid")
        is_over = int(claims["exp"]) <= now_s - LEEWAY_S
        if is_over or now_s - int(claims["iat"]) > MOST_AGE_S:
            raise jwt.ExpiredSignatureError("ended, or too old")

    async def _key(self, kid: str) -> jwt.PyJWK:
        # Before the lock: a request with a known key must not wait while another
        # request makes this process ask the issuer.
        if not (self._is_fresh and kid in self._keys):
            async with self._lock:
                # Any client can name an unknown key, so the issuer is not asked for
                # each of them.
                may_ask = self._clock_s() - self._asked_s >= AGAIN_S
                if may_ask and not (self._is_fresh and kid in self._keys):
                    self._asked_s = self._clock_s()
                    await self._read()
        # Stale keys may have been withdrawn since.
        if not self._is_fresh:
            raise Refusal(
                UNAVAILABLE,
                "The keys of the issuer of tokens cannot be read; try again later.",
                {"Retry-After": f"{AGAIN_S:.0f}"},
            )
        key = self._keys.get(kid)
        if key is None:
            raise jwt.InvalidKeyError("not a key of the issuer")
        return key

    @property
    def _is_fresh(self) -> bool:
        return self._clock_s() - self._read_s < FRESH_S

    async def _read(self) -> None:
        """Read the issuer's keys; after an error the earlier keys stay."""
        try:
            found = json.loads(await self._fetch(await self._keys_url()))
            self._keys = dict(_usable(list(found["keys"])))
        except _UNREAD as error:
            logger.error("api.issuer_keys_unread error=%s", type(error).__name__)  # noqa: TRY400 - its text is the issuer's
            return
        self._read_s = self._clock_s()

    async def _keys_url(self) -> str:
        if self._settings.keys_url is not None:
            return self._settings.keys_url
        issuer = self._settings.issuer
        base = issuer.rstrip("/")
        about = json.loads(
            await self._fetch(f"{base}/.well-known/openid-configuration")
        )
        url = str(about["jwks_uri"])
        if about["issuer"] != issuer or not url.startswith(("https://", f"{base}/")):
            raise ValueError("another issuer, or keys that are not read by https")
        return url


_UNREAD = (aiohttp.ClientError, OSError, *_REFUSED)
"""Errors when reading an issuer's documents."""


def _usable(keys: list[dict[str, Any]]) -> Iterator[tuple[str, jwt.PyJWK]]:
    """Return the keys that verify tokens, by id; skip the others (RFC 7517, 5)."""
    for index, key in enumerate(keys):
        try:
            is_pair = key.get("kty") in {"RSA", "EC", "OKP"}
            is_named = isinstance(key.get("kid"), str)
            if is_pair and is_named and key.get("use", "sig") == "sig":
                yield key["kid"], jwt.PyJWK(key)
        except any_failure() as error:  # the two libraries may raise anything
            # Without texts, which come from the issuer.
            logger.warning(
                "api.issuer_key_skipped index=%d error=%s", index, type(error).__name__
            )
