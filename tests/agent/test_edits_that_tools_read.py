"""A form accepts a text exactly where the tool's own type reads it as itself."""

from __future__ import annotations

import datetime as dt
import ipaddress
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import StructuredTool
from pydantic import AnyUrl, HttpUrl

from keyturn.agent.calls import schema_of
from keyturn.agent.canonical import ArgumentMismatch, canonical_args
from keyturn.bot.modals.schema import moment_text, time_text
from keyturn.gateway.protocol.edits import edit_errors

TYPES: dict[Any, tuple[str, ...]] = {
    AnyUrl: ("https://a.example/", "https://b.example", "b.example", "urn:isbn:1"),
    HttpUrl: ("https://a.example/", "https://b.example", "HTTPS://b.example/x y"),
    uuid.UUID: (
        "12345678-1234-5678-1234-567812345678",
        "22345678123456781234567812345678",
        "{22345678-1234-5678-1234-567812345678}",
    ),
    dt.datetime: (
        "2026-03-29T02:30:00",
        "2026-03-29 03:30",
        "2026-03-29",
        "2026-03-29T03:30:00+00:00",
        "29.3.2026",
        "1767225600",
    ),
    dt.date: ("2026-03-29", "20260329", "29.3.2026", "2026-03-29T00:00:00"),
    dt.time: ("10:30:00", "10:30", "10:30:00+00:00", "half past ten"),
    Decimal: ("10.50", "11,50", " 11.50", "+11.5", "1E+3", "", "NaN", "1_000"),
    ipaddress.IPv4Address: ("192.0.2.1", "192.0.2", "192.0.2.01"),
    ipaddress.IPv6Address: ("2001:db8::1", "2001:DB8::1", "2001:db8:0::1"),
}


def tool_of(kind: Any) -> StructuredTool:
    def act(x: Any) -> str:
        return str(x)

    act.__annotations__["x"] = kind
    return StructuredTool.from_function(act, name="act", description="Act.")


def reads_as_itself(tool: StructuredTool, text: str) -> bool:
    try:
        return canonical_args(tool, {"x": text}) == {"x": text}
    except ArgumentMismatch:
        return False


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in TYPES.items() for text in texts]
)
def test_an_edit_is_accepted_exactly_where_the_tool_would_run_with_it(
    kind: Any,
    text: str,
) -> None:
    tool, first = tool_of(kind), TYPES[kind][0]

    errors = edit_errors(schema_of(tool), {"x": first}, {"x": text})

    assert reads_as_itself(tool, first)
    assert (errors == {}) == reads_as_itself(tool, text), errors


@given(st.integers(1_000_000_000, 9_999_999_999), st.times())
def test_the_pickers_of_a_form_give_what_the_tool_reads(s: int, at: dt.time) -> None:
    moment, clock = moment_text(s, None), time_text(f"{at:%H:%M}", None)

    assert reads_as_itself(tool_of(dt.datetime), moment)
    assert reads_as_itself(tool_of(dt.time), clock)
