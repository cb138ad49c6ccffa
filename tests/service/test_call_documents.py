"""A call that runs at once is refused where it could not have a document."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.levels import examples
from twokey.gateway.approvals.record import Context
from twokey.gateway.protocol.business_state import BusinessState
from twokey.gateway.protocol.strict_json import MAX_BYTES, MAX_DEPTH
from twokey.gateway.protocol.wire import ProposedCall, TurnRef
from twokey.gateway.service.call_documents import document_of, small_args

REF = TurnRef(agent="support", thread="t1", message_id="m1")
SALT = "0" * 32
CHARACTERS = st.sampled_from(["a", "\x01", '"', "é", "\U0001f600", "\ud800"])


def _call(args: dict[str, Any], tool: str = "look_up") -> ProposedCall:
    return ProposedCall(tool=tool, args=args, tool_call_id="c1")


def _document(call: ProposedCall, ref: TurnRef = REF, tenant: str = "default") -> str:
    ctx = Context(tenant=tenant, tool_call_id=call.tool_call_id, **ref.names)
    return document_of(call, ctx, lambda: SALT, with_state=True)


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth - 1):
        found = [found]
    return found


def test_a_plain_call_needs_no_document_to_be_known_to_fit() -> None:
    assert small_args(_call({"order": "78291", "amount": 1.5}), "default", REF)


@settings(max_examples=examples(100), deadline=None)
@given(
    character=CHARACTERS,
    of_tool=st.booleans(),
    missing=st.integers(min_value=-400, max_value=3000),
)
def test_what_is_said_to_fit_has_a_document(
    character: str, missing: int, *, of_tool: bool
) -> None:
    per = len(character.encode("utf-8", "replace"))
    text = character * ((MAX_BYTES - missing) // per)
    call = _call({}, tool=text) if of_tool else _call({"text": text})

    assert _document(call) or not small_args(call, "default", REF)


@pytest.mark.parametrize("depth", range(MAX_DEPTH - 3, MAX_DEPTH + 2))
def test_arguments_are_as_deep_as_they_stand_in_the_document(depth: int) -> None:
    call = _call({"in": _nested(depth)})

    assert bool(_document(call)) == bool(small_args(call, "default", REF))


def test_the_names_of_a_turn_count() -> None:
    for name in ("thread", "message_id", "ns", "agent"):
        ref = REF.with_(**{name: "\x01" * (MAX_BYTES // 6)})

        assert not _document(_call({}), ref)
        assert not small_args(_call({}), "default", ref)


def test_a_call_with_a_state_is_looked_at_as_a_whole() -> None:
    call = _call({}).with_(state=BusinessState(value={"version": 1}))

    assert not small_args(call, "default", REF)
