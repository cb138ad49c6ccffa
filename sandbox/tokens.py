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
    """An issued token."""

    value: str
    kind: TokenKind
    revoked: bool = False


class Tokens:
    """The issued tokens, by value."""

    def __init__(self) -> None:
        self.known: dict[str, Token] = {}

    def issue(self, kind: TokenKind) -> str:
        """Return a new token, `xoxb-…` for the bot or `xapp-…` for the app."""
        prefix = "xoxb" if kind is TokenKind.BOT else "xapp-1-A0KEYTURN"
        return self.add(f"{prefix}-{secrets.token_hex(20)}", kind)

    def add(self, value: str, kind: TokenKind) -> str:
        """Accept a token with a given value, and return it."""
        self.known[value] = Token(value, kind)
        return value

    def revoke(self, value: str) -> None:
        """Revoke a token: calls with it get `token_revoked` from now on."""
        self.known[value] = replace(self.known[value], revoked=True)

    def check(self, value: str) -> Token:
        """Return the caller's token.

        Raises:
            ApiError: `not_authed` (none given), `invalid_auth` (unknown) or
                `token_revoked`.
        """
        if not value:
            raise ApiError("not_authed")
        token = self.known.get(value)
        if token is None:
            raise ApiError("invalid_auth")
        if token.revoked:
            raise ApiError("token_revoked")
        return token
