"""Know the person behind a client over HTTP, by a token of the company's issuer.

It is the issuer of `api.people` in the settings, and the person becomes the requester
of their calls: they cannot approve them. The token ends here and reaches no upstream.
"""

from __future__ import annotations

import time

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier
from typing_extensions import override

from keyturn.connect.mcp.calls import Caller
from keyturn.gateway.api.person_tokens import Fetch, PersonTokens, fetch
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.service_settings import PeopleSettings


class Tokens(TokenVerifier):
    """Accepts the tokens of people whom the settings list.

    Args:
        tokens: verifies them.
        issuer: URL of the issuer, where a client signs in.
    """

    def __init__(self, tokens: PersonTokens, issuer: str) -> None:
        self._tokens, self.issuer = tokens, issuer

    @override
    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the person of a token; None if it is refused."""
        try:
            found = await self._tokens.reviewer(token)
        except Refusal:
            return None  # `PersonTokens` has logged why
        claims = {"iss": self.issuer, "team": found.team, "name": found.name}
        return AccessToken(
            token="", client_id="", scopes=[], subject=found.user, claims=claims
        )


def tokens_of(
    people: PeopleSettings, gate: HttpGateway, *, fetch: Fetch = fetch
) -> Tokens:
    """Return what accepts the people of the settings, by the gateway's clock."""
    clock = gate.connection.clock

    def now_s() -> float:
        return time.time() - clock.ahead_s  # noqa: TID251 - corrected by the gateway's

    return Tokens(PersonTokens(people, now_s=now_s, fetch=fetch), people.issuer)


def signed_in(_ctx: object) -> Caller:
    """Return the person who sends the current request.

    Raises:
        NotAllowed: the request has no valid token.
    """
    token = get_access_token()
    if token is None or not token.subject:
        raise NotAllowed("This request has no token of a person, so nothing ran.")
    claims = token.claims or {}
    person = Person(
        team=claims.get("team", ""), user=token.subject, name=claims.get("name", "")
    )
    return Caller(person.user, person)
