"""A notice reads as in the text files, fits into Slack, and interprets nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.bot.markup_audit import assert_tame
from tests.bot.readable import readable
from tests.bot.samples import ANA, BEN, KEY, KIM, NOW, TEAM
from tests.bot.snapshots import assert_same
from tests.bot.strategies import hostile
from tests.levels import examples
from twokey.bot.cards.notice import (
    MAX_ROWS,
    many_ran,
    notice_card,
    plain_notice,
    report_line,
)
from twokey.bot.ids import NOTICE_EVENT
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.notice import CallState, Notice, NoticedCall, Remark
from twokey.gateway.protocol.records import Person
from twokey.sandbox.blockkit import validate_message

FOLDER = Path(__file__).parent / "snapshots"
LISTED = "The policy lists this tool as notify."


def a_call(index: int = 0, **changes: Any) -> NoticedCall:
    call = NoticedCall(
        index=index,
        tool="post_notice",
        tool_call_id=f"call_{index}",
        args={"text": "We are open again."},
        reasons=(LISTED,),
    )
    return call.with_(**changes)


def a_notice(*calls: NoticedCall, **changes: Any) -> Notice:
    notice = Notice(
        id="nt_7f3k",
        tenant="acme",
        agent="support-agent",
        thread="th_1",
        message_id="msg_1",
        channel="C0APPROVALS",
        created_at_ms=NOW,
        requester=KIM,
        policy_digest="sha256:" + "0" * 64,
        calls=calls or (a_call(),),
    )
    return notice.with_(**changes)


def ended(call: NoticedCall, state: CallState, summary: str = "done") -> NoticedCall:
    return call.with_(state=state, changed_at_ms=NOW + 60_000, summary=summary)


NOTICES = {
    "notice_started": a_notice(requester=None),
    "notice_done": a_notice(
        ended(a_call(description="Post the opening hours"), CallState.EXECUTED)
    ),
    "notice_failed": a_notice(ended(a_call(), CallState.FAILED, "503")),
    "notice_of_seven": a_notice(
        ended(a_call(0), CallState.EXECUTED),
        a_call(1, tool="send_email", args={"body": "abc " * 2_000, "key": "s3cret"}),
        *(a_call(index) for index in range(2, 7)),
    ),
    "notice_reported": a_notice(
        remarks=tuple(
            Remark(by=by, text=text, at_ms=NOW + 60_000)
            for by, text in ((KIM, ""), (ANA, "*who* asked?"), (BEN, ""), (KIM, "x"))
        )
    ),
}


@pytest.mark.parametrize("name", NOTICES)
def test_a_notice_reads_as_written_down(name: str) -> None:
    message = notice_card(NOTICES[name], key=KEY, team=TEAM)

    assert_same(FOLDER, name, readable(message.blocks, message.text))


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["x", "\u200b", "\u0430b "])
@pytest.mark.parametrize("count", [1, 2, MAX_ROWS, MAX_ROWS + 90])
def test_the_fullest_notice_is_still_accepted(count: int, filler: str) -> None:
    long = filler * 2_000
    calls = [
        ended(
            a_call(
                index,
                tool=f"{index}{long}"[:200],
                args={"a": long, "b": [long]},
                description=long,
                reasons=(long, long),
            ),
            CallState.FAILED,
            long,
        )
        for index in range(count)
    ]
    somebody = Person(team=TEAM, user="U" + "0" * 29)
    remarks = [Remark(by=somebody, text=long, at_ms=NOW) for _ in range(9)]
    notice = a_notice(
        *calls, agent=long, requester=somebody, remarks=tuple(remarks), rev=9
    )

    message = notice_card(notice, key=KEY, team=TEAM)

    problems = validate_message([*message.blocks], message.text, update=True)
    assert [str(problem) for problem in problems] == []


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(hostile, hostile)
def test_no_text_of_a_stranger_is_interpreted(text: str, name: str) -> None:
    event = Event(
        name=EventName.NOTICE_REPORTED,
        tenant="acme",
        reason=text,
        actor=f"{TEAM}/U0ANA",
    )
    ran = event.with_(name=EventName.CALL_RAN, tool=name, agent=text)
    call = a_call(tool=name or "t", args={name: text}, description=text)
    notice = a_notice(
        ended(call, CallState.FAILED, text),
        a_call(1),
        agent=text,
        remarks=(Remark(by=ANA, text=text, at_ms=NOW),),
    )

    for message in (
        notice_card(notice, key=KEY, team=TEAM),
        plain_notice(notice),
        report_line(event),
        many_ran([ran, ran]),
    ):
        problems = validate_message([*message.blocks], message.text, update=True)
        assert [str(problem) for problem in problems] == []
        assert_tame(message.blocks, message.text)


def test_metadata_holds_ids_only() -> None:
    message = notice_card(a_notice(), key=KEY, team=TEAM)

    assert message.metadata == {
        "event_type": NOTICE_EVENT,
        "event_payload": {"notice": "nt_7f3k", "rev": 1},
    }


def test_many_calls_are_counted_by_tool_and_agent() -> None:
    ran = Event(name=EventName.CALL_RAN, tenant="acme", agent="a", tool="post")
    events = [ran, ran, ran.with_(agent="b"), ran.with_(name=EventName.CALL_FAILED)]

    message = many_ran(events)

    assert readable(message.blocks) == (
        "m:🔔 *3 more calls without review*, too many at once for a notice each. "
        "1 of them failed so far.\n"
        "+--\n| 2 of post (a)\n| 1 of post (b)\n+--\n"
        "~ m:To stop a tool, write: | /approvals freeze tool NAME\n"
    )
