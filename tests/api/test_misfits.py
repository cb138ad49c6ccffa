"""The error about an invalid body names the place, and never repeats the body."""

from __future__ import annotations

import pytest

from keyturn.gateway.api.operations import BY_PATH, read
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.protocol.http_problems import MALFORMED

NOTE = BY_PATH["/v1/note"]


def refused(members: int) -> Refusal:
    """Return how a body is refused that has so many unknown members."""
    body = "{" + ",".join(f'"k{n}":"secret"' for n in range(members)) + "}"
    with pytest.raises(Refusal) as caught:
        read(NOTE.question, body.encode())
    assert caught.value.kind is MALFORMED
    assert "secret" not in str(caught.value)
    return caught.value


def test_the_first_place_is_named() -> None:
    assert "The body does not fit at " in str(refused(10))
    assert "places" not in str(refused(10))
