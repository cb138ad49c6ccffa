"""A webhook is accepted from who signed it, while it is new, and as it was sent."""

from __future__ import annotations

import pytest

from keyturn.gateway.errors import NotVerified
from keyturn.gateway.trust.webhook_signatures import (
    Message,
    headers,
    parse_webhook_secret,
    verify_webhook,
)

NOW_S = 1_800_000_000
SECRET, OTHER = b"a" * 32, b"b" * 32
MESSAGE = Message("evt_1", NOW_S, '{"é":1}'.encode())


def test_any_of_several_keys_is_accepted() -> None:
    signed = headers(MESSAGE, [OTHER, SECRET])

    for key in (SECRET, OTHER):
        found = verify_webhook(signed, MESSAGE.body, keys=[key], now_s=NOW_S)
        assert found == MESSAGE


@pytest.mark.parametrize(
    ("change", "now_s", "why"),
    [
        ({}, NOW_S + 301, "expired"),
        ({}, NOW_S - 301, "expired"),
        ({"webhook-timestamp": str(NOW_S + 1)}, NOW_S, "signature_wrong"),
        ({"webhook-timestamp": f" {NOW_S}"}, NOW_S, "malformed"),
        ({"webhook-timestamp": "18e8"}, NOW_S, "malformed"),
        ({"webhook-timestamp": "\u0661" * 10}, NOW_S, "malformed"),
        ({"webhook-timestamp": ""}, NOW_S, "malformed"),
        ({"webhook-id": "evt_2"}, NOW_S, "signature_wrong"),
        ({"webhook-id": f"evt_1.{NOW_S}"}, NOW_S, "malformed"),
        ({"webhook-id": ""}, NOW_S, "malformed"),
        # As servers decode the byte FF of a header.
        ({"webhook-id": "evt_\udcff"}, NOW_S, "malformed"),
        ({"webhook-signature": ""}, NOW_S, "signature_wrong"),
        ({"webhook-signature": "v1,"}, NOW_S, "signature_wrong"),
        ({"webhook-signature": "v1,é"}, NOW_S, "signature_wrong"),
        ({"webhook-signature": "v2,AAAA"}, NOW_S, "signature_wrong"),
    ],
)
def test_a_changed_webhook_is_refused(
    change: dict[str, str], now_s: float, why: str
) -> None:
    signed = headers(MESSAGE, [SECRET]) | change

    with pytest.raises(NotVerified, match=why):
        verify_webhook(signed, MESSAGE.body, keys=[SECRET], now_s=now_s)


def test_another_body_or_key_is_refused() -> None:
    signed = headers(MESSAGE, [SECRET])

    with pytest.raises(NotVerified, match="signature_wrong"):
        verify_webhook(signed, MESSAGE.body + b" ", keys=[SECRET], now_s=NOW_S)
    with pytest.raises(NotVerified, match="signature_wrong"):
        verify_webhook(signed, MESSAGE.body, keys=[OTHER], now_s=NOW_S)


@pytest.mark.parametrize("text", ["whsec_?", "whsec_AAAA", "whsec_" + "A" * 100])
def test_a_secret_that_is_none_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(NotVerified) as refused:
        parse_webhook_secret(text)
    assert text not in str(refused.value)
