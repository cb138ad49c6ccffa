"""Each text of a turn is checked, in any field."""

from __future__ import annotations

import pytest

from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.wire import (
    CallHint,
    ProposedCall,
    Turn,
    TurnRef,
    check_texts,
)

HALF = "\ud83d"
REF = TurnRef(agent="support", thread="7", message_id="m1")
CALL = ProposedCall(tool="pay", args={}, tool_call_id="c1")
TURN = Turn(ref=REF, calls=(CALL,))


def with_ref(**changes: object) -> Turn:
    return TURN.with_(ref=REF.with_(**changes))


def with_call(**changes: object) -> Turn:
    return TURN.with_(calls=(CALL, CALL.with_(**changes)))


RUN = RunRef(agent="outer", thread="6")

TURNS = {
    "agent": with_ref(agent=HALF),
    "thread": with_ref(thread=HALF),
    "ns": with_ref(ns=HALF),
    "message_id": with_ref(message_id=HALF),
    "agent outside": with_ref(nested_in=RUN.with_(agent=HALF)),
    "thread outside": TURN.with_(enclosing_run=RUN.with_(thread=HALF)),
    "text": TURN.with_(says=HALF),
    "tool": with_call(tool=HALF),
    "call id": with_call(tool_call_id=HALF),
    "problem": with_call(problem=HALF),
    "description": with_call(hint=CallHint().with_(description=HALF)),
    "schema of the tool": TURN.with_(schemas={HALF: {}}),
}


def test_a_sound_turn_is_let_through() -> None:
    check_texts(TURN)


@pytest.mark.parametrize("where", TURNS)
def test_half_of_a_surrogate_pair_is_refused_where_it_stands(where: str) -> None:
    with pytest.raises(NotAllowed, match="A text of this turn"):
        check_texts(TURNS[where])
