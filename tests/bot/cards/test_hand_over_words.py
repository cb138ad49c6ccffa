"""No text says that Keyturn ran a call that it handed to another program."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import get_args

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.cards.states import STATE_NAMES
from keyturn.bot.modals.details import pages
from keyturn.gateway.approvals.changes import reason_of_end
from keyturn.gateway.approvals.decisions import Stale
from keyturn.gateway.approvals.ending import LEFT, RESTORED
from keyturn.gateway.approvals.events import (
    HANDED_TO,
    Event,
    EventName,
    approval_event,
    named_after,
)
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.protocol.records import ItemState, NotTaken, Result
from keyturn.gateway.service.run.approval_readings import view_of
from keyturn.gateway.service.run.claiming import unclaimable
from keyturn.gateway.trust.audit_bundle import Story
from tests.bot.cards.test_card_snapshots import EDITED
from tests.bot.samples import NOW, a_refund, an_approval, frame, handed, in_state

S = ItemState
HERE = {S.EXECUTING, S.EXECUTED, S.FAILED, S.IN_DOUBT}
"""States that a call of another program never has."""

HONEST = re.compile(
    r"runs (it|this|its calls) by itself|cannot see what runs"
    r"|reports(:| that) it (ran|failed)|program reports"
)
CLAIM = re.compile(
    r"\bran\b|\bto run\b|\brunning\b|\bdone\b|\bexecut|\bfailed\b", re.IGNORECASE
)
UNKNOWN = re.compile(r"whether it ran", re.IGNORECASE)


def calls() -> Iterator[Item]:
    """Yield a call of another program at each of its possible ends."""
    reports = (None, Result(ok=True, summary="x"), Result(ok=False, summary="x"))
    for item, problem in itertools.product((a_refund(), EDITED), get_args(NotTaken)):
        if problem:
            yield handed(item, S.NOT_TAKEN, problem=problem, detail="x")
    for item, report in itertools.product((a_refund(), EDITED), reports):
        yield handed(item, S.HANDED_OVER, reported=report)
    others = {*S} - HERE - {S.HANDED_OVER, S.NOT_TAKEN, S.PENDING}
    for item, state in itertools.product((a_refund(), EDITED), others):
        one = handed(item, state)
        yield one
        yield one.with_(fence=1)
        for reason in (LEFT, RESTORED):
            why = reason_of_end(one, reason, NOW).with_(is_final=True)
            yield one.with_(fence=1, revoked=why)
    yield handed(a_refund(), S.PENDING)


CALLS = [*calls()]


def event_of(item: Item) -> Event:
    is_open = item.state is S.PENDING
    name = EventName.APPROVAL_OPENED if is_open else named_after(item.state)
    return approval_event(an_approval(item), name, item)


def told(item: Item) -> Iterator[str]:
    """Yield all texts about a call: for people, for its connector and for the audit."""
    approval = an_approval(item)
    event = event_of(item)
    shown = frame(approval)
    yield card(shown).text
    yield str(card(shown).blocks)
    yield str([part.title for page in pages(approval, item) for part in page])
    note = thread_note(event, approval)
    yield str(note.blocks) if note else ""
    yield outcome_text(Stale(item=item)).text
    yield STATE_NAMES[item.state]
    answer = answer_for(item)
    yield answer.message if answer else ""
    yield getattr(unclaimable(item), "reason", "")
    yield str(Story("ap_1", [event]).row["ran"]).replace("True", "ran")
    yield event.name
    view = view_of(approval).calls[0]
    yield "ran" if view.ok is not None else ""


def claims(item: Item) -> list[str]:
    """Return what the texts about a call claim of its run."""
    texts = (UNKNOWN.sub("", HONEST.sub("", text)) for text in told(item))
    return [found[0] for text in texts for found in CLAIM.finditer(text)]


@pytest.mark.parametrize("item", CALLS, ids=lambda one: f"{one.state}-{one.fence}")
def test_no_text_says_that_keyturn_ran_it(item: Item) -> None:
    assert claims(item) == []


@pytest.mark.parametrize("state", HERE)
def test_the_texts_of_a_call_that_runs_here_would_be_found(state: ItemState) -> None:
    assert claims(in_state(a_refund(), state, result=Result(ok=state is S.EXECUTED)))


def test_every_event_names_the_class() -> None:
    for item in CALLS:
        event = event_of(item)
        assert event.data[HANDED_TO] == item.handed_to
        assert view_of(an_approval(item)).calls[0].handed_to == item.handed_to


def test_a_question_that_is_gone_may_have_been_answered_elsewhere() -> None:
    gone = handed(a_refund(), S.WITHDRAWN).with_(decision=None)
    [said] = {card(frame(an_approval(gone))).text}
    assert "Claude Code no longer asks. It was not handed over." in said
    assert "by the agent" not in said
