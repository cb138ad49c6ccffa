"""Install the app by OAuth, and rotate its tokens.

Source: https://docs.slack.dev/authentication/installing-with-oauth and
https://docs.slack.dev/authentication/using-token-rotation
"""

import base64
import secrets
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.arguments import optional
from keyturn.sandbox.clock import Clock
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.tokens import TokenKind, Tokens
from keyturn.sandbox.workspace import Workspace

CODE_LIFE_S = 600.0
TOKEN_LIFE_S = 43_200


class Place(NamedTuple):
    """A workspace in which the app can be installed, and its tokens."""

    workspace: Workspace
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Grant:
    """A person's consent, whose code has not been exchanged yet.

    `place` is the id of the workspace, or of the whole organization. `user_scope` are
    the rights that the app gets to act as this person.
    """

    user: str
    place: str
    redirect_uri: str
    issued_at: float
    user_scope: str = ""


@dataclass(slots=True)
class Installer:
    """Exchange codes and refresh tokens for bot tokens; each works once.

    Attributes:
        rotation: issue tokens that expire, with a refresh token.
        token_life_s: lifetime of such a token; Slack's is twelve hours.
        places: the workspaces by their ids; the first one is the default.
    """

    workspace: Workspace
    tokens: Tokens
    clock: Clock
    client_id: str = "1000000000.2000000000"
    client_secret: str = field(default_factory=lambda: secrets.token_hex(16))
    rotation: bool = False
    token_life_s: int = TOKEN_LIFE_S
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    _codes: dict[str, Grant] = field(default_factory=dict[str, Grant])
    _used_codes: set[str] = field(default_factory=set[str])
    _refreshable: dict[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]]
    )

    def __post_init__(self) -> None:
        """Begin with one workspace."""
        self.places[self.workspace.team_id] = Place(self.workspace, self.tokens)

    def consent(
        self,
        client_id: str,
        redirect_uri: str,
        state: str,
        user: str = "U0ANA",
        *,
        place: str = "",
        user_scope: str = "",
        declines: bool = False,
    ) -> str:
        """Return the address to which Slack would redirect an admin's browser.

        Raises:
            ApiError: `invalid_client_id`, `bad_redirect_uri` if it is not http or
                https, or `invalid_team_for_non_distributed_app` for an unknown place.
        """
        if client_id != self.client_id:
            raise ApiError("invalid_client_id")
        if not redirect_uri.startswith(("http://", "https://")):
            raise ApiError("bad_redirect_uri")
        place = place or self.workspace.team_id
        if not self._served_by(place):
            raise ApiError("invalid_team_for_non_distributed_app")
        answer = {"error": "access_denied", "state": state}
        if not declines:
            code = secrets.token_urlsafe(16)
            now = self.clock.now()
            self._codes[code] = Grant(user, place, redirect_uri, now, user_scope)
            answer = {"code": code, "state": state}
        separator = "&" if "?" in redirect_uri else "?"
        return f"{redirect_uri}{separator}{urlencode(answer)}"

    def exchange(self, arguments: JsonObject) -> JsonObject:
        """Answer `oauth.v2.access`, for a code or for a refresh token."""
        if optional(arguments, "client_id") != self.client_id:
            raise ApiError("invalid_client_id")
        given = str(arguments.get("client_secret") or "")
        if not secrets.compare_digest(given.encode(), self.client_secret.encode()):
            raise ApiError("bad_client_secret")
        match optional(arguments, "grant_type"):
            case None | "authorization_code":
                grant = self._take_code(arguments)
                return self._install(grant.place) | self._person(grant)
            case "refresh_token":
                return self._install(self._take_refresh_token(arguments))
            case _:
                raise ApiError("invalid_grant_type")

    def uninstall(self, place: str) -> None:
        """Revoke all bot tokens of a workspace or organization."""
        for each in self._served_by(place):
            for token in [*each.tokens.known.values()]:
                if token.kind is TokenKind.BOT:
                    each.tokens.revoke(token.value)
        self._refreshable = {
            refresh: (token, of)
            for refresh, (token, of) in self._refreshable.items()
            if of != place
        }

    def _served_by(self, place: str) -> list[Place]:
        """Return the workspaces of a place: itself, or those of an organization."""
        return [
            each
            for team, each in self.places.items()
            if place in {team, each.workspace.enterprise_id}
        ]

    def _person(self, grant: Grant) -> JsonObject:
        """Return the installing person, with a token to act as them, if asked for.

        The person has revoked that token already: it can be neither used nor renewed.
        """
        answer: JsonObject = {"id": grant.user}
        if grant.user_scope:
            token = f"xoxp-{secrets.token_hex(20)}"
            answer |= {"scope": grant.user_scope, "access_token": token}
            if self.rotation:
                refresh = f"xoxe-1-{secrets.token_hex(20)}"
                answer |= {"refresh_token": refresh, "expires_in": self.token_life_s}
        return {"authed_user": answer}

    def _take_code(self, arguments: JsonObject) -> Grant:
        code = optional(arguments, "code") or ""
        if code in self._used_codes:
            raise ApiError("code_already_used")
        grant = self._codes.get(code)
        if grant is None or self.clock.now() - grant.issued_at > CODE_LIFE_S:
            raise ApiError("invalid_code")
        if optional(arguments, "redirect_uri") not in (None, grant.redirect_uri):
            raise ApiError("bad_redirect_uri")
        self._used_codes.add(code)
        del self._codes[code]
        return grant

    def _take_refresh_token(self, arguments: JsonObject) -> str:
        refresh_token = optional(arguments, "refresh_token") or ""
        rotated, place = self._refreshable.pop(refresh_token, ("", ""))
        if not rotated:
            raise ApiError("invalid_refresh_token")
        for each in self._served_by(place):
            each.tokens.forget(rotated)
        return place

    def _install(self, place: str) -> JsonObject:
        first, *rest = self._served_by(place)
        workspace = first.workspace
        enterprise, is_org = workspace.enterprise_id, place == workspace.enterprise_id
        team = {"id": workspace.team_id, "name": workspace.team_name}
        answer: JsonObject = {
            "app_id": workspace.app.id,
            "scope": ",".join(workspace.bot_scopes),
            "token_type": "bot",
            "bot_user_id": workspace.app.bot_user,
            "team": None if is_org else team,
            "enterprise": {"id": enterprise, "name": "Org"} if enterprise else None,
            "is_enterprise_install": is_org,
        }
        expires_at = self.clock.now() + self.token_life_s if self.rotation else None
        token = first.tokens.issue(TokenKind.BOT, expires_at=expires_at)
        for each in rest:
            each.tokens.add(token, TokenKind.BOT, expires_at)
        for each in (first, *rest):
            each.workspace.is_enterprise_install = is_org
        answer["access_token"] = token
        if expires_at is None:
            return answer
        refresh_token = f"xoxe-1-{secrets.token_hex(20)}"
        self._refreshable[refresh_token] = token, place
        return answer | {
            "refresh_token": refresh_token,
            "expires_in": self.token_life_s,
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
