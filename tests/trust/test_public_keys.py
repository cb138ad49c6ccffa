"""A public key is read whole or not at all."""

from __future__ import annotations

import pytest

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.public_keys import parse_public_key
from keyturn.gateway.trust.key_folder import SigningKey

KEY = SigningKey.from_seed("keyturn/gateway", bytes(range(32)))
TEXT = KEY.public.text


def test_what_is_printed_is_read() -> None:
    assert parse_public_key(f" {TEXT}\n") == KEY.public


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keyturn/gateway",
        TEXT[:-4],
        TEXT + "A",
        TEXT.replace("gateway", "bot"),
        "keyturn/" + TEXT,
        TEXT.upper(),
        TEXT.replace("+", "-", 1),
        TEXT.rpartition("+")[0] + "+AAAA",
        "é" + TEXT,
    ],
)
def test_a_mistyped_key_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="keyturn keys list"):
        parse_public_key(text)
