"""What a connector of a framework is given is checked, and so is every verdict."""

from __future__ import annotations

import math
from typing import Any

import pytest

from keyturn.connect.asking import Asker, schemas_of
from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.errors import KeyRefused, SettingsError
from keyturn.gateway.protocol.wire import (
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from tests.service.harness import DAN, ServiceHarness

CALL = ProposedCall(tool="look_up_order", args={"order": 7}, tool_call_id="c1")
TURN = Turn(ref=TurnRef(agent="support", thread="t1", message_id="m1"), calls=(CALL,))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"agent": ""}, "an agent needs a name"),
        ({"gateway": object()}, "give the URL of one"),
        ({"gateway": None}, "No gateway is named"),
        ({"gateway": "http://gateway.example.com"}, "Over plain http"),
        ({"api_key": ""}, "is missing"),
        ({"ungated": "refund"}, "give a list of names"),
        ({"limit_s": 0}, "give seconds"),
        ({"limit_s": math.nan}, "give seconds"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(
    changed: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEYTURN_GATEWAY", raising=False)
    given: dict[str, Any] = {
        "agent": "support",
        "gateway": "https://gateway.example.com",
        "api_key": "tk_1",
        "ungated": (),
        "limit_s": math.inf,
    }
    Asker(**given)

    with pytest.raises(SettingsError, match=words):
        Asker(**(given | changed))


def asker_of(gate: LocalGate) -> Asker:
    """Return an agent without options."""
    return Asker("support", gate, None, ungated=(), limit_s=math.inf)


class OtherVerdicts(LocalGate):
    """A gateway whose verdicts are about another call."""

    other: dict[str, object]

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        return tuple(one.with_(**self.other) for one in await super().submit(turn))


@pytest.mark.parametrize(
    "other", [{"tool": "refund"}, {"tool_call_id": "c2"}, {"args_hash": "sha256:0"}]
)
async def test_a_verdict_on_another_call_denies_this_one(
    people: ServiceHarness, other: dict[str, object]
) -> None:
    gate = OtherVerdicts(people.store, lambda: people.policy)
    asker = asker_of(gate)
    gate.other = {}
    assert (await asker.verdict(TURN, CALL)).kind is VerdictKind.RUN

    gate.other = other
    denied = await asker.verdict(TURN, CALL)

    assert denied.kind is VerdictKind.DENY
    assert "was not cleared" in denied.reason


async def test_a_refused_key_ends_the_run(people: ServiceHarness) -> None:
    gate = LocalGate(people.store, lambda: people.policy)
    asker = asker_of(gate)
    await asker.verdict(TURN, CALL, DAN)
    other = CALL.with_(args={"order": 8})

    reused = await asker.verdict(TURN.with_(calls=(other,)), other)
    assert reused.kind is VerdictKind.DENY
    assert "was submitted before" in reused.reason

    class Refusing(LocalGate):
        async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
            raise KeyRefused("no key")

    refusing = Refusing(people.store, lambda: people.policy)
    with pytest.raises(KeyRefused):
        await asker_of(refusing).verdict(TURN, CALL)


def test_a_schema_that_cannot_be_used_is_left_out() -> None:
    good = {"type": "object"}

    assert schemas_of({"good": good, "bad": {"default": math.nan}}) == {"good": good}
