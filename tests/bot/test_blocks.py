"""The builders keep Slack's limits, and strangers' text out of markup."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot import blocks as b
from keyturn.bot.blocks import (
    Block,
    multi_select,
    option,
    radio_buttons,
    select,
    text_input,
)
from keyturn.bot.text import (
    Ref,
    Template,
    channel,
    code,
    label,
    moment,
    template,
    untrusted,
    user,
    usergroup,
)
from keyturn.sandbox.blockkit import JSON
from tests.bot.markup_audit import objects


def texts(value: JSON) -> list[str]:
    found = [each.get("text") for each in objects(value)]
    return [each for each in found if isinstance(each, str)]


def refused_by_the_type_checkers() -> None:
    """Stay uncalled: mypy and pyright complain when one of these is not an error."""
    b.section("text")  # type: ignore[arg-type] # a str is no trusted markup
    b.header("text")  # type: ignore[arg-type] # nor a label
    b.header(template("text"))  # type: ignore[arg-type] # headers take no markup
    b.text_run(untrusted("text"))  # type: ignore[arg-type] # no strangers in rich text
    template("{x}", x="text")  # type: ignore[arg-type] # a str is no reference
    b.modal("title", [], callback_id="x", close=label("x"))  # type: ignore[arg-type] # nor a title


@pytest.mark.parametrize(
    "build",
    [b.section, b.header, b.text_run, b.context, b.warning],
)
def test_a_plain_str_is_refused_at_run_time(build: Callable[[Any], Block]) -> None:
    with pytest.raises(AttributeError):
        build("<!channel>")


def test_a_box_is_never_cut_by_the_builder() -> None:
    block = b.rich_text(b.box("x" * 9_500))

    with pytest.raises(b.BadBlocks, match="9000 characters, has 9500") as caught:
        b.ensure_valid_message([block], "text")

    assert [each.code for each in caught.value.problems] == ["msg_blocks_too_long"]


def test_a_template_is_markup_with_references() -> None:
    at = datetime(2026, 11, 21, 2, 30, tzinfo=timezone(timedelta(hours=1)))

    sentence = template(
        "*{who}* of {group} in {where} approved {what}, {n} of {m}, {at}",
        who=user("U0LEAD"),
        group=usergroup("S0SUPPORT"),
        where=channel("C1"),
        what=code("ap_7"),
        n=1,
        m=2,
        at=moment(at),
    )

    assert sentence.text == (
        "*<@U0LEAD>* of <!subteam^S0SUPPORT> in <#C1> approved `ap_7`, 1 of 2, "
        "<!date^1795224600^{date_short_pretty} {time}|2026-11-21 01:30 UTC>"
    )
    assert b.section(sentence)["text"] == {
        "type": "mrkdwn",
        "text": sentence.text,
        "verbatim": True,
    }


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (user, "U1> <!channel"),
        (user, "u1"),
        (usergroup, "U1"),
        (channel, "C1|x"),
        (code, "a`*b*`"),
        (code, "two\nlines"),
        (code, "ends with a space "),
        (code, "x" * 129),
        (Ref, "<!channel>"),
        (Ref, "<!date^1^{date}^https://evil.example|x>"),
        (Ref, "<@U1>\n"),
    ],
)
def test_what_is_no_id_is_no_reference(make: Callable[[str], Ref], value: str) -> None:
    with pytest.raises(ValueError, match="is no reference; make one with"):
        make(value)


@settings(deadline=None)  # the machine may be busy
@given(st.text())
def test_no_text_of_a_stranger_gets_markup_through_a_reference(text: str) -> None:
    for make in (user, usergroup, channel, code):
        try:
            made = make(text).text
        except ValueError:
            continue
        assert not set(text) & set("<>&*~`|^ \n\t")
        assert made.count("<") + made.count("`") in {1, 2}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: template("{who}"), r"wants \['who'\] and was given \[\]"),
        (lambda: template("x", who=user("U1")), r"given \['who'\]"),
        (lambda: template("{n:>9}", n=1), "without a format"),
        (lambda: template("{n!r}", n=1), "without a format"),
        (lambda: template("{}"), "name each reference"),
        (lambda: template("{who.text}", who=user("U1")), "name each reference"),
    ],
)
def test_a_template_takes_its_own_names(make: Callable[[], Template], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_options_that_would_look_alike_are_numbered() -> None:
    long = [option(untrusted("x" * 90 + end), end) for end in "abc"]
    short = [option(label(text), text) for text in "abc"]

    shown = texts(select("a", long))

    assert len(set(shown)) == 3
    assert shown[0].startswith("1. x")
    assert max(map(len, shown)) == 75
    assert texts(select("a", short)) == ["a", "b", "c"]


def test_a_choice_that_is_not_offered_is_refused() -> None:
    offered = [option(label(value), value) for value in "ab"]

    with pytest.raises(ValueError, match="is not among the 2 options"):
        select("a", offered, initial="c")
    with pytest.raises(ValueError, match="is not among the 2 options"):
        radio_buttons("a", offered, initial="c")
    with pytest.raises(ValueError, match="is not among the 2 options"):
        multi_select("a", offered, initial=["c"])


def test_a_value_that_does_not_fit_its_input_is_refused_and_never_cut() -> None:
    exact = text_input("a", initial="x\u202e" * 1_500)

    assert exact["initial_value"] == "x\u202e" * 1_500
    with pytest.raises(ValueError, match="holds 3000 characters, its value has 3001"):
        text_input("a", initial="x" * 3_001)
