"""A program goes on with the thread that a webhook names, and with no other's word."""

from __future__ import annotations

import json

import pytest

from keyturn.gateway.errors import NotVerified, SettingsError
from keyturn.gateway.remote.program import WebhookVerifier
from keyturn.gateway.trust.webhook_signatures import (
    DECIDED,
    Message,
    News,
    body_of,
    headers,
    shown,
    webhook_secret,
)
from tests.store_secrets import SECRETS

KEY = webhook_secret(SECRETS[0], "default", "app", 1)
NOW_S = 1_800_000_000
BODY = body_of(DECIDED, News(agent="shop", thread="t1", approval="ap_1"), 5)


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.at_s = float(NOW_S)

    def __call__(self) -> float:
        return self.at_s


def signed(body: bytes = BODY, id_: str = "msg_1", key: bytes = KEY) -> dict[str, str]:
    return headers(Message(id_, NOW_S, body), [key])


def test_a_message_counts_for_five_minutes() -> None:
    clock = Clock()
    verifier = WebhookVerifier([shown(KEY)], clock_s=clock)

    first = verifier.verify(signed(), BODY)
    clock.at_s += 301

    assert first.type == DECIDED
    assert first.data == News(agent="shop", thread="t1", approval="ap_1")
    with pytest.raises(NotVerified, match="expired"):
        verifier.verify(signed(), BODY)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b'{"type":"x","timestamp":"no","data":{}}'],
)
def test_what_is_signed_and_no_message_is_refused(body: bytes) -> None:
    verifier = WebhookVerifier([shown(KEY)], clock_s=Clock())

    with pytest.raises(NotVerified, match="malformed"):
        verifier.verify(signed(body), body)


def test_another_kind_or_a_later_field_is_read() -> None:
    body = json.dumps(
        {
            "type": "thread.deleted",
            "timestamp": "2030-01-01T00:00:00Z",
            "data": {"agent": "shop", "why": "x"},
            "more": 1,
        }
    ).encode()
    verifier = WebhookVerifier([shown(KEY)], clock_s=Clock())

    news = verifier.verify(signed(body), body)

    assert (news.type, news.data) == ("thread.deleted", News(agent="shop"))


def test_a_secret_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    other = webhook_secret(SECRETS[0], "default", "app", 2)
    monkeypatch.setenv("KEYTURN_WEBHOOK_SECRET", f"{shown(KEY)}, {shown(other)}")
    verifier = WebhookVerifier(None, clock_s=Clock())

    assert verifier.verify(signed(key=other, id_="msg_2"), BODY)
    assert verifier.verify(signed(), BODY)
    with pytest.raises(NotVerified, match="signature_wrong"):
        verifier.verify(signed(key=b"x" * 32), BODY)


def test_without_a_secret_nothing_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEYTURN_WEBHOOK_SECRET", raising=False)

    with pytest.raises(SettingsError, match="KEYTURN_WEBHOOK_SECRET"):
        WebhookVerifier(None).verify(signed(), BODY)
    with pytest.raises(SettingsError) as refused:
        WebhookVerifier(["whsec_abc"])
    assert "abc" not in str(refused.value)
