"""An issuer of tokens of people, and the settings of a gateway that trusts it."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from keyturn.gateway.service_settings import PeopleSettings

ISSUER = "https://login.example.com/"
SETTINGS = PeopleSettings.model_validate(
    {
        "issuer": ISSUER,
        "audience": "keyturn",
        "team": "T0",
        "reviewers": {
            "ana": {"user": "U0ANA", "name": "Ana"},
            "ben": {"user": "U0BEN"},
            "chloe": {"user": "U0CHLOE"},
            "dan": {"user": "U0DAN"},
            "eve": {"user": "U0EVE"},
        },
    }
)
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk(key: Any, kid: str) -> dict[str, Any]:
    algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid}


class Issuer:
    """An issuer of tokens, and the clock of its client."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {
            f"{ISSUER}.well-known/openid-configuration": {
                "issuer": ISSUER,
                "jwks_uri": f"{ISSUER}keys",
            },
            f"{ISSUER}keys": {"keys": [jwk(RSA, "a"), jwk(EC, "b")]},
        }
        self.asked: list[str] = []
        self.now_s = 0.0

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        found = self.documents.get(url)
        if found is None:
            raise OSError("status 404")
        return json.dumps(found).encode()

    def token(
        self,
        sub: str = "ana",
        *,
        key: Any = RSA,
        kid: str = "a",
        alg: str = "RS256",
        **claims: Any,
    ) -> str:
        now = int(time.time())  # noqa: TID251 - an issuer's clock is that of the world
        body = {
            "iss": ISSUER,
            "aud": "keyturn",
            "sub": sub,
            "iat": now,
            "exp": now + 300,
        }
        body = {k: v for k, v in {**body, **claims}.items() if v is not None}
        return jwt.encode(body, key, algorithm=alg, headers={"kid": kid})
