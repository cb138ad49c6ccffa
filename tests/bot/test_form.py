"""A form is decoded as Python's own reader does it; what two may differ on is not."""

from __future__ import annotations

import json
from urllib.parse import parse_qsl, quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twokey.bot.form import BadForm, interaction_of

_PIECES = ["%", "%2", "%25", "%zz", "%41", "=", "=41", "+", "&", "a", "_", "%0A", "é"]


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=40), max_size=4))
def test_every_payload_comes_back_as_it_was_sent(payload: dict[str, str]) -> None:
    for ascii_only in (True, False):
        text = json.dumps(payload, ensure_ascii=ascii_only)

        # Both ways of writing a space.
        assert interaction_of(urlencode({"payload": text}, errors="replace")) == (
            json.loads(text.encode(errors="replace"))
        )
        escaped = quote(text, safe="", errors="replace")
        assert interaction_of(f"payload={escaped}&ssl_check=0") == (
            json.loads(text.encode(errors="replace"))
        )


@given(st.lists(st.sampled_from(_PIECES), max_size=8).map("".join))
def test_what_is_read_is_what_pythons_reader_reads(value: str) -> None:
    body = f'payload="{value}"'
    try:
        found = interaction_of(body)
    except BadForm:
        return

    assert found == json.loads(dict(parse_qsl(body))["payload"], strict=False)


@pytest.mark.parametrize(
    "body",
    [
        "payload={}&payload={}",
        "payload={}&other=1&payload={}",
        "payload=%7B%7",
        "payload=%7B%",
        "payload=%",
        "payload=%7B%zz%7D",
        "payload=%%7B%7D",
        "payload=%\n7B%7D",
        "payload={%\n\n}",
        "payload={%\r\n%7D",
        "payload=é",
        "payload=",
        "payload=junk",
        "payload=%7B%22a%22%3A%22%FF%22%7D",
        "payload=%7B%22a%22%3A%22%C3%22%7D",
    ],
)
def test_what_two_readers_may_differ_on_is_refused_without_its_text(body: str) -> None:
    with pytest.raises(BadForm) as refused:
        interaction_of(body)

    assert "junk" not in repr(refused.value)


@pytest.mark.parametrize(
    "body", ["", "{}", '{"a": "&payload={}"}', "command=%2Fx&payload=%7B%7D", "payload"]
)
def test_what_does_not_begin_as_an_interaction_is_none(body: str) -> None:
    assert interaction_of(body) is None


@given(st.text(max_size=60))
def test_no_body_raises_anything_else(text: str) -> None:
    for body in (text, f"payload={text}"):
        try:
            interaction_of(body)
        except BadForm:
            continue


@pytest.mark.parametrize(
    "text",
    [
        '{"typed": "half of a pair: \\ud83d"}',
        "[" * 400 + "]" * 400,
        '{"a": 1, "a": 2}',
        '[1.0, 1e2, -0, 12345678901234567890123, "\\u0000"]',
    ],
)
def test_what_the_faster_parser_refuses_is_read_as_before(text: str) -> None:
    found = interaction_of(f"payload={quote(text, safe='')}")

    assert repr(found) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["[" * 100_000, f"[{'9' * 5000}]", "[1,]", '"\x01"'])
def test_what_no_parser_takes_is_refused(text: str) -> None:
    with pytest.raises(BadForm):
        interaction_of(f"payload={quote(text, safe='')}")
