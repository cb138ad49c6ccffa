"""Issue, validate, revoke and forget the API tokens of the fake workspace."""

import secrets
from dataclasses import dataclass, replace
from enum import StrEnum

from keyturn.sandbox.api_errors import ApiError


class TokenKind(StrEnum):
    """The kind of a Slack token."""

    BOT = "bot"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Token:
    """An issued token; `expires_at` is Unix seconds, None if it does not expire."""

    value: str
    kind: TokenKind
    revoked: bool = False
    expires_at: float | None = None


class Tokens:
    """The issued tokens, by value."""

    def __init__(self) -> None:
        self.known: dict[str, Token] = {}

    def issue(self, kind: TokenKind, *, expires_at: float | None = None) -> str:
        """Return a new token, `xoxb-…` for the bot or `xapp-…` for the app."""
        prefix = "xoxb" if kind is TokenKind.BOT else "xapp-1-A0KEYTURN"
        if expires_at is not None:
            prefix = f"xoxe.{prefix}"
        return self.add(f"{prefix}-{secrets.token_hex(20)}", kind, expires_at)

    def add(self, value: str, kind: TokenKind, expires_at: float | None = None) -> str:
        """Accept a token with a given value, and return it."""
        self.known[value] = Token(value, kind, expires_at=expires_at)
        return value

    def revoke(self, value: str) -> None:
        """Revoke a token: calls with it get `token_revoked` from now on."""
        self.known[value] = replace(self.known[value], revoked=True)

    def forget(self, value: str) -> None:
        """Remove a rotated token: calls with it get `invalid_auth`."""
        self.known.pop(value, None)

    def check(self, value: str, now: float) -> Token:
        """Return the caller's token.

        Raises:
            ApiError: `not_authed` (none given), `invalid_auth` (unknown),
                `token_revoked` or `token_expired`.
        """
        if not value:
            raise ApiError("not_authed")
        token = self.known.get(value)
        if token is None:
            raise ApiError("invalid_auth")
        if token.revoked:
            raise ApiError("token_revoked")
        if token.expires_at is not None and token.expires_at <= now:
            raise ApiError("token_expired")
        return token
