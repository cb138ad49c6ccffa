"""Authenticate the workspace's tokens."""

import secrets
from dataclasses import dataclass, replace
from enum import StrEnum

from twokey.sandbox.refusals import Refused


class Kind(StrEnum):
    """Who a token speaks for."""

    BOT = "bot"
    APP = "app"


@dataclass(frozen=True, slots=True)
class Token:
    """An issued token; `expires_at` is Unix seconds, None for a lasting one."""

    value: str
    kind: Kind
    revoked: bool = False
    expires_at: float | None = None


class Tokens:
    """Issue, check, revoke and rotate tokens."""

    def __init__(self) -> None:
        self.known: dict[str, Token] = {}

    def issue(self, kind: Kind, *, expires_at: float | None = None) -> str:
        """Return a new token, `xoxb-…` for the bot or `xapp-…` for the app."""
        prefix = "xoxb" if kind is Kind.BOT else "xapp-1-A0TWOKEY"
        if expires_at is not None:
            prefix = f"xoxe.{prefix}"
        return self.add(f"{prefix}-{secrets.token_hex(20)}", kind, expires_at)

    def add(self, value: str, kind: Kind, expires_at: float | None = None) -> str:
        """Accept a token that was chosen elsewhere."""
        self.known[value] = Token(value, kind, expires_at=expires_at)
        return value

    def revoke(self, value: str) -> None:
        """Let a token be answered with `token_revoked` from now on."""
        self.known[value] = replace(self.known[value], revoked=True)

    def forget(self, value: str) -> None:
        """Let a token be answered with `invalid_auth`, as one that was rotated."""
        self.known.pop(value, None)

    def check(self, value: str, now: float) -> Token:
        """Return the token a caller showed.

        Raises:
            Refused: `not_authed` (none shown), `invalid_auth` (unknown),
                `token_revoked` or `token_expired`.
        """
        if not value:
            raise Refused("not_authed")
        token = self.known.get(value)
        if token is None:
            raise Refused("invalid_auth")
        if token.revoked:
            raise Refused("token_revoked")
        if token.expires_at is not None and token.expires_at <= now:
            raise Refused("token_expired")
        return token
