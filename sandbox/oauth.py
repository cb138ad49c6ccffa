"""Install the app by OAuth, and rotate its tokens.

Source: https://docs.slack.dev/authentication/installing-with-oauth and
https://docs.slack.dev/authentication/using-token-rotation
"""

import base64
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlencode

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.arguments import optional
from keyturn.sandbox.clock import Clock
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.tokens import TokenKind, Tokens
from keyturn.sandbox.workspace import Workspace

CODE_LIFE_S = 600.0
TOKEN_LIFE_S = 43_200


@dataclass(frozen=True, slots=True)
class Grant:
    """A person's consent, whose code has not been exchanged yet."""

    user: str
    redirect_uri: str
    issued_at: float


@dataclass(slots=True)
class Installer:
    """Exchange codes and refresh tokens for bot tokens; each works once.

    Attributes:
        rotation: issue tokens that live twelve hours, with a refresh token.
    """

    workspace: Workspace
    tokens: Tokens
    clock: Clock
    client_id: str = "1000000000.2000000000"
    client_secret: str = field(default_factory=lambda: secrets.token_hex(16))
    rotation: bool = False
    _codes: dict[str, Grant] = field(default_factory=dict[str, Grant])
    _used_codes: set[str] = field(default_factory=set[str])
    _refreshable: dict[str, str] = field(default_factory=dict[str, str])

    def consent(
        self, client_id: str, redirect_uri: str, state: str, user: str = "U0ANA"
    ) -> str:
        """Return the address to which Slack would redirect an admin's browser.

        Raises:
            ApiError: `invalid_client_id`, or `bad_redirect_uri` if it is not http or
                https.
        """
        if client_id != self.client_id:
            raise ApiError("invalid_client_id")
        if not redirect_uri.startswith(("http://", "https://")):
            raise ApiError("bad_redirect_uri")
        code = secrets.token_urlsafe(16)
        self._codes[code] = Grant(user, redirect_uri, self.clock.now())
        separator = "&" if "?" in redirect_uri else "?"
        return f"{redirect_uri}{separator}{urlencode({'code': code, 'state': state})}"

    def exchange(self, arguments: JsonObject) -> JsonObject:
        """Answer `oauth.v2.access`, for a code or for a refresh token."""
        if optional(arguments, "client_id") != self.client_id:
            raise ApiError("invalid_client_id")
        given = str(arguments.get("client_secret") or "")
        if not secrets.compare_digest(given.encode(), self.client_secret.encode()):
            raise ApiError("bad_client_secret")
        match optional(arguments, "grant_type"):
            case None | "authorization_code":
                return self._install(self._take_code(arguments))
            case "refresh_token":
                return self._install(self._take_refresh_token(arguments))
            case _:
                raise ApiError("invalid_grant_type")

    def _take_code(self, arguments: JsonObject) -> str:
        code = optional(arguments, "code") or ""
        if code in self._used_codes:
            raise ApiError("code_already_used")
        grant = self._codes.get(code)
        if grant is None or self.clock.now() - grant.issued_at > CODE_LIFE_S:
            raise ApiError("invalid_code")
        if optional(arguments, "redirect_uri") not in (None, grant.redirect_uri):
            raise ApiError("bad_redirect_uri")
        self._used_codes.add(code)
        return self._codes.pop(code).user

    def _take_refresh_token(self, arguments: JsonObject) -> str:
        refresh_token = optional(arguments, "refresh_token") or ""
        rotated = self._refreshable.pop(refresh_token, None)
        if rotated is None:
            raise ApiError("invalid_refresh_token")
        self.tokens.forget(rotated)
        return ""

    def _install(self, user: str) -> JsonObject:
        workspace = self.workspace
        answer: JsonObject = {
            "app_id": workspace.app.id,
            "scope": ",".join(workspace.bot_scopes),
            "token_type": "bot",
            "bot_user_id": workspace.app.bot_user,
            "team": {"id": workspace.team_id, "name": workspace.team_name},
            "enterprise": None,
            "is_enterprise_install": False,
        }
        if user:
            answer["authed_user"] = {"id": user}
        if not self.rotation:
            return answer | {"access_token": self.tokens.issue(TokenKind.BOT)}
        expires_at = self.clock.now() + TOKEN_LIFE_S
        token = self.tokens.issue(TokenKind.BOT, expires_at=expires_at)
        refresh_token = f"xoxe-1-{secrets.token_hex(20)}"
        self._refreshable[refresh_token] = token
        return answer | {
            "access_token": token,
            "refresh_token": refresh_token,
            "expires_in": TOKEN_LIFE_S,
        }


def basic_credentials(header: str) -> JsonObject:
    """Return the client's id and secret from a Basic `Authorization` header."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return {}
    try:
        decoded = base64.b64decode(encoded, validate=True).decode()
    except ValueError:
        return {}
    client_id, _, client_secret = decoded.partition(":")
    return {"client_id": client_id, "client_secret": client_secret}
